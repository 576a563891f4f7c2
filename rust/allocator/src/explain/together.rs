//! Where claims do not fit together: the first claim, and the first of its requests, for which nothing is left.

use std::time::{Duration, Instant};

use dra_api::{DeviceConstraint, ResourceClaim};

use super::report::Explanation;
use super::summary;
use crate::question::{Question, allocation_of, try_allocate};

/// For each attempt: an explanation that takes long is worth less than a shorter one.
const DEADLINE_MS: u64 = 500;
/// For all attempts of one explanation.
const ALL_ATTEMPTS: Duration = Duration::from_secs(5);

/// Writes into the claims which of them still fit with those before, and how far the first that does not gets.
pub(super) fn find_culprit(question: &Question, explanation: &mut Explanation) {
    let end = Instant::now() + ALL_ATTEMPTS;
    for count in 1..=question.claims.len() {
        if Instant::now() >= end {
            return;
        }
        let claims = &question.claims[..count];
        if fits(question, claims.to_vec()) != Some(false) {
            continue;
        }
        let Some(claim) = claims.last().filter(|claim| allocation_of(claim).is_none()) else {
            return;
        };
        let Some(report) = explanation.claims.get_mut(count - 1) else {
            return;
        };
        if summary::obstacle(report).is_some() {
            return;
        }
        let requests = claim.spec.devices.requests.len();
        for shorter in 1..=requests {
            if Instant::now() >= end {
                return;
            }
            let mut attempt = claims[..count - 1].to_vec();
            attempt.push(first_requests(claim, shorter));
            if fits(question, attempt) == Some(false) {
                let name = &claim.spec.devices.requests[shorter - 1].name;
                report.summary = words(name, shorter, count, requests);
                return;
            }
        }
        return;
    }
}

fn words(request: &str, position: usize, claims: usize, requests: usize) -> String {
    let before = match (position, claims) {
        (1, 1) => "",
        (1, _) => " beside the claims before it",
        (_, 1) => " beside the requests before it",
        _ => " beside the claims and requests before it",
    };
    if requests == 1 && claims == 1 {
        format!(
            "request {request} has enough devices one by one, but not together: they share counters, capacity or a constraint"
        )
    } else {
        format!(
            "request {request} does not fit{before}: each has enough devices alone, but not all together"
        )
    }
}

fn fits(question: &Question, claims: Vec<ResourceClaim>) -> Option<bool> {
    let mut attempt = question.clone();
    attempt.claims = claims;
    attempt.limits.deadline_ms = DEADLINE_MS;
    try_allocate(&attempt).ok().map(|results| results.is_some())
}

/// The claim with its first requests only; constraints forget the others.
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
