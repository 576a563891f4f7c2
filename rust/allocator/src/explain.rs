//! Why claims get the devices that they get, or none: for each request, what speaks against each device of the node.
//!
//! Every device is judged by the checks that the search uses, one at a time and with nothing of the question allocated yet;
//! whether the requests fit together is answered by the search itself. Nothing is changed.

mod groups;
mod hint;
mod report;
mod summary;
mod together;
mod verdict;

use std::collections::HashSet;
use std::time::Instant;

use dra_api::{AllocationResult, DeviceRequest, ResourceClaim};

use crate::constraints::Constraint;
use crate::error::Error;
use crate::in_use::InUse;
use crate::plan::{Classes, Match, Task, new_task};
use crate::pools::{self, PoolState};
use crate::question::{Question, allocation_of, classes_by_name, try_allocate};
use crate::request::{Request, claim_name};

pub use report::{
    ClaimReport, ConstraintReport, Consumer, DeviceReport, Explanation, PoolReport, Rejection,
    RequestReport, ValueReport,
};

/// Explains the answer to a question.
pub fn explain(question: &Question) -> Explanation {
    let answer = try_allocate(question);
    let mut explanation = Explanation {
        node: question.node.0.metadata.name.clone(),
        fits: matches!(answer, Ok(Some(_))),
        ..Explanation::default()
    };
    match judge(question, &mut explanation) {
        Ok(()) => {}
        Err(error) => explanation.error = Some(error.to_string()),
    }
    match answer {
        Ok(Some(results)) => {
            mark_allocated(&mut explanation, question, &results);
            explanation.results = results;
        }
        Ok(None) => together::find_culprit(question, &mut explanation),
        Err(error) => explanation.error = Some(error.to_string()),
    }
    summary::write(&mut explanation);
    explanation
}

/// Judges every device for every request.
fn judge(question: &Question, explanation: &mut Explanation) -> Result<(), Error> {
    let node = &question.node.0;
    let in_use = InUse::gather(question.allocated.iter().chain(&question.claims));
    let classes = classes_by_name(&question.classes);
    // As long again as the answer had: what is known by then is worth more than nothing.
    let deadline = question.limits.deadline(Instant::now());
    let mut matching = Match::new(node, pools::gather(&question.slices, node)?, deadline);
    explanation.pools = matching.pools.iter().map(pool_report).collect();
    for claim in &question.claims {
        let mut report = ClaimReport {
            claim: claim_name(claim),
            uid: claim.metadata.uid.clone(),
            already_allocated: allocation_of(claim).is_some(),
            ..ClaimReport::default()
        };
        if !report.already_allocated {
            for request in &claim.spec.devices.requests {
                for (part, alternative) in parts(request) {
                    let judged = judge_request(claim, part, &classes, &mut matching, &in_use);
                    report.requests.push(RequestReport {
                        alternative,
                        ..judged
                    });
                }
            }
            let specs = &claim.spec.devices.constraints;
            let constraints: Vec<Constraint<'_>> =
                specs.iter().filter_map(Constraint::new).collect();
            groups::judge(&mut report, &constraints, &matching);
        }
        explanation.claims.push(report);
    }
    Ok(())
}

/// The request itself, or its alternatives; and whether it is one.
fn parts(request: &DeviceRequest) -> Vec<(Request<'_>, bool)> {
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

fn judge_request<'a>(
    claim: &'a ResourceClaim,
    request: Request<'a>,
    classes: &Classes<'a>,
    matching: &mut Match<'a>,
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
    match new_task(claim, request, classes, matching) {
        Ok(task) => judge_devices(&mut report, claim, &task, matching, in_use),
        Err(error) => report.error = Some(error.to_string()),
    }
    report
}

fn judge_devices<'a>(
    report: &mut RequestReport,
    claim: &'a ResourceClaim,
    task: &Task<'a>,
    matching: &mut Match<'a>,
    in_use: &InUse<'a>,
) {
    let constraints: Vec<Constraint<'_>> = claim
        .spec
        .devices
        .constraints
        .iter()
        .filter_map(Constraint::new)
        .filter(|constraint| constraint.applies_to(&task.request))
        .collect();
    for index in 0..matching.candidates.len() {
        let device = verdict::judge(task, index, &constraints, matching, in_use);
        if report.error.is_none() {
            report.error = device.failure();
        }
        report.devices.push(device);
    }
    for pool in &matching.pools {
        report.devices.extend(verdict::of_unusable(pool));
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

/// What keeps a pool from being allocated from.
fn problem(state: &PoolState) -> Option<String> {
    match state {
        PoolState::Usable => None,
        PoolState::Incomplete { found, wanted } => Some(format!(
            "the pool is incomplete: {found} of {wanted} slices are published"
        )),
        PoolState::Invalid(reason) => Some(format!("the pool is not valid: {reason}")),
    }
}

/// Marks the devices that would be allocated.
fn mark_allocated(
    explanation: &mut Explanation,
    question: &Question,
    results: &[AllocationResult],
) {
    for ((report, claim), result) in explanation
        .claims
        .iter_mut()
        .zip(&question.claims)
        .zip(results)
    {
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
