//! Finds the first claim and its first request that do not fit in combination with the earlier ones.

use std::time::{Duration, Instant};

use dra_api::{DeviceConstraint, ResourceClaim};

use super::report::Explanation;
use super::summary;
use crate::query::{ResolvedQuery, allocation_of};

/// Time limit of one attempt. A quick explanation is better than a complete one.
const ONE_ATTEMPT: Duration = Duration::from_millis(500);
/// Time limit of all attempts of one explanation.
const ALL_ATTEMPTS: Duration = Duration::from_secs(5);

/// Sets the summary of the first claim that does not fit in combination with the earlier claims.
pub(super) fn find(query: &ResolvedQuery<'_>, explanation: &mut Explanation) {
    let end = Instant::now() + ALL_ATTEMPTS;
    for count in 1..=query.claims.len() {
        if Instant::now() >= end {
            return;
        }
        let claims = &query.claims[..count];
        if fits(query, claims) != Some(false) {
            continue;
        }
        let Some(claim) = claims.last().filter(|claim| allocation_of(claim).is_none()) else {
            return;
        };
        let Some(report) = explanation.claims.get_mut(count - 1) else {
            return;
        };
        let is_incomplete = !report.summary.is_empty();
        if is_incomplete || summary::blocker(report).is_some() {
            return;
        }
        let requests = claim.spec.devices.requests.len();
        for shorter in 1..=requests {
            if Instant::now() >= end {
                return;
            }
            let mut attempt = claims[..count - 1].to_vec();
            attempt.push(first_requests(claim, shorter));
            if fits(query, &attempt) == Some(false) {
                let name = &claim.spec.devices.requests[shorter - 1].name;
                report.summary = summary_text(name, shorter, count, requests);
                return;
            }
        }
        return;
    }
}

fn summary_text(request: &str, position: usize, claims: usize, requests: usize) -> String {
    let before = match (position, claims) {
        (1, 1) => "",
        (1, _) => " together with the earlier claims",
        (_, 1) => " together with the earlier requests",
        _ => " together with the earlier claims and requests",
    };
    if requests == 1 && claims == 1 {
        format!(
            "request {request} has enough devices individually, but not in combination: they share counters, capacity or a constraint"
        )
    } else {
        format!(
            "request {request} does not fit{before}: each has enough devices individually, but not in combination"
        )
    }
}

fn fits(query: &ResolvedQuery<'_>, claims: &[ResourceClaim]) -> Option<bool> {
    let attempt = ResolvedQuery {
        claims,
        deadline: query.deadline.renewed(ONE_ATTEMPT),
        ..*query
    };
    attempt.allocate().ok().map(|results| results.is_some())
}

/// The claim with only its first requests. Constraints drop the other requests.
fn first_requests(claim: &ResourceClaim, count: usize) -> ResourceClaim {
    let mut shorter = claim.clone();
    let devices = &mut shorter.spec.devices;
    devices.requests.truncate(count);
    let names: Vec<&str> = devices
        .requests
        .iter()
        .map(|request| request.name.as_str())
        .collect();
    devices.constraints = devices
        .constraints
        .iter()
        .filter_map(|constraint| {
            if constraint.requests.is_empty() {
                return Some(constraint.clone());
            }
            let requests: Vec<String> = constraint
                .requests
                .iter()
                .filter(|name| names.contains(&name.split('/').next().unwrap_or_default()))
                .cloned()
                .collect();
            (!requests.is_empty()).then(|| DeviceConstraint {
                requests,
                ..constraint.clone()
            })
        })
        .collect();
    shorter
}
