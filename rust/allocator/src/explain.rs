//! Explains an allocation: for each request, the reasons against each device of the node.
//!
//! Every device is checked individually with the checks of the search, before any claim of the query is allocated. The
//! search itself determines whether the requests fit in combination.

mod groups;
mod hint;
mod joint_conflicts;
mod rejections;
mod report;
mod summary;

use std::collections::HashSet;
use std::time::Instant;

use dra_api::{AllocationResult, DeviceRequest, ResourceClaim};

use crate::constraints::Constraint;
use crate::error::Error;
use crate::in_use::InUse;
use crate::plan::{CandidateSet, Classes, Task, new_task};
use crate::pools::{self, PoolState};
use crate::programs::Programs;
use crate::query::{Query, ResolvedQuery, allocation_of, classes_by_name};
use crate::request::{Request, claim_name};

pub use report::{
    ClaimReport, ConstraintReport, Consumer, DeviceReport, Explanation, PoolReport, Rejection,
    RequestReport, ValueReport,
};

/// Explains the result of a query. Errors are in [`Explanation::error`].
pub fn explain(query: &Query) -> Explanation {
    let programs = Programs::default();
    let classes = classes_by_name(&query.classes);
    query.resolve(&classes, &programs).explain()
}

impl ResolvedQuery<'_> {
    /// Explains the result of [`ResolvedQuery::allocate`].
    pub(crate) fn explain(&self) -> Explanation {
        let result = self.allocate();
        let mut explanation = Explanation {
            node: self.node.metadata.name.clone(),
            fits: matches!(result, Ok(Some(_))),
            ..Explanation::default()
        };
        match evaluate_claims(self, &mut explanation) {
            Ok(()) => {}
            Err(error) => explanation.error = Some(error.to_string()),
        }
        match result {
            Ok(Some(results)) => {
                mark_allocated(&mut explanation, self.claims, &results);
                explanation.results = results;
            }
            Ok(None) => joint_conflicts::find(self, &mut explanation),
            Err(error) => explanation.error = Some(error.to_string()),
        }
        summary::write(&mut explanation);
        explanation
    }
}

/// Evaluates every device for every request.
fn evaluate_claims(query: &ResolvedQuery<'_>, explanation: &mut Explanation) -> Result<(), Error> {
    let in_use = query.in_use();
    // The explanation has its own deadline of the same length, so that it exists even if the search timed out.
    let deadline = query.limits.deadline(Instant::now());
    let mut candidate_set = query.candidate_set(deadline)?;
    explanation.pools = candidate_set.pools.iter().map(pool_report).collect();
    for claim in query.claims {
        let mut report = ClaimReport {
            claim: claim_name(claim),
            uid: claim.metadata.uid.clone(),
            already_allocated: allocation_of(claim).is_some(),
            ..ClaimReport::default()
        };
        if !report.already_allocated {
            for request in &claim.spec.devices.requests {
                for (part, alternative) in parts(request) {
                    let evaluated =
                        evaluate_request(claim, part, query.classes, &mut candidate_set, &in_use);
                    report.requests.push(RequestReport {
                        alternative,
                        ..evaluated
                    });
                }
            }
            groups::check(
                &mut report,
                &Constraint::of_claim(claim, query.gates),
                &candidate_set,
            );
        }
        explanation.claims.push(report);
    }
    Ok(())
}

/// The request or its alternatives, each with whether it is an alternative.
pub(crate) fn parts(request: &DeviceRequest) -> Vec<(Request<'_>, bool)> {
    if request.first_available.is_empty() {
        return request
            .exactly
            .iter()
            .map(|exactly| (Request::exact(request, exactly), false))
            .collect();
    }
    request
        .first_available
        .iter()
        .map(|sub| (Request::alternative(request, sub), true))
        .collect()
}

fn evaluate_request<'a>(
    claim: &'a ResourceClaim,
    request: Request<'a>,
    classes: &Classes<'a>,
    candidate_set: &mut CandidateSet<'a>,
    in_use: &InUse<'a>,
) -> RequestReport {
    let mut report = RequestReport {
        request: request.name(),
        class: request.class.to_owned(),
        all: request.mode == dra_api::ALL,
        needed: if request.count == 0 { 1 } else { request.count },
        admin_access: request.admin_access,
        ..RequestReport::default()
    };
    match new_task(claim, request, classes, candidate_set) {
        Ok(task) => evaluate_devices(&mut report, claim, &task, candidate_set, in_use),
        Err(error) => report.error = Some(error.to_string()),
    }
    report
}

fn evaluate_devices<'a>(
    report: &mut RequestReport,
    claim: &'a ResourceClaim,
    task: &Task<'a>,
    candidate_set: &mut CandidateSet<'a>,
    in_use: &InUse<'a>,
) {
    let constraints = Constraint::of_request(claim, &task.request, candidate_set.gates);
    for index in 0..candidate_set.candidates.len() {
        let device = rejections::evaluate_device(task, index, &constraints, candidate_set, in_use);
        if report.error.is_none() {
            report.error = device.failure();
        }
        report.devices.push(device);
    }
    for pool in &candidate_set.pools {
        report.devices.extend(rejections::unusable_devices(pool));
    }
    report.count();
    if report.all {
        report.needed = i64::try_from(report.matching).unwrap_or(i64::MAX);
    }
}

fn pool_report(pool: &pools::Pool<'_>) -> PoolReport {
    PoolReport {
        driver: pool.driver.to_owned(),
        pool: pool.name.to_owned(),
        devices: pool
            .found
            .iter()
            .map(|slice| slice.spec.devices.len())
            .sum(),
        problem: problem(&pool.state),
    }
}

/// The reason why a pool is not usable.
fn problem(state: &PoolState) -> Option<String> {
    match state {
        PoolState::Usable => None,
        PoolState::Incomplete { found, expected } => Some(format!(
            "the pool is incomplete: {found} of {expected} slices are published"
        )),
        PoolState::Invalid(reason) => Some(format!("the pool is invalid: {reason}")),
    }
}

/// Marks the devices of the allocation.
fn mark_allocated(
    explanation: &mut Explanation,
    claims: &[ResourceClaim],
    results: &[AllocationResult],
) {
    for ((report, claim), result) in explanation.claims.iter_mut().zip(claims).zip(results) {
        debug_assert_eq!(report.claim, claim_name(claim));
        let chosen: HashSet<(&str, &str, &str, &str)> = result
            .devices
            .results
            .iter()
            .map(|entry| {
                (
                    entry.request.as_str(),
                    entry.driver.as_str(),
                    entry.pool.as_str(),
                    entry.device.as_str(),
                )
            })
            .collect();
        for request in &mut report.requests {
            for device in &mut request.devices {
                device.allocated = chosen.contains(&(
                    request.request.as_str(),
                    device.driver.as_str(),
                    device.pool.as_str(),
                    device.device.as_str(),
                ));
            }
        }
    }
}
