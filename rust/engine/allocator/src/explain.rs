//! Explains an allocation: for each request, the reasons against each device of the node.
//!
//! Every device is checked individually with the checks of the search, before any claim of the query is allocated. The
//! search itself determines whether the requests fit in combination.

mod constraints;
mod counters;
mod hint;
mod joint_conflicts;
mod rejections;
mod report;
mod summary;
mod values;

use std::collections::HashSet;
use std::time::Instant;

use dra_api::{AllocationResult, DeviceRequest, ResourceClaim};

use crate::constraints::Constraint;
use crate::error::Error;
use crate::in_use::InUse;
use crate::plan::{CandidateSet, Task, new_task};
use crate::pools;
use crate::query::{ResolvedQuery, allocation_of};
use crate::request::{Request, claim_name};
use counters::PoolCounters;

pub use report::{
    ClaimReport, ConstraintReport, Consumer, DeviceReport, Explanation, PoolReport, Rejection,
    RequestReport, ValueReport,
};

impl ResolvedQuery<'_> {
    /// Explains the result of [`ResolvedQuery::allocate`].
    pub(crate) fn explain(&self) -> Explanation {
        let result = self.allocate();
        let mut explanation = Explanation {
            node: self.node.metadata.name.clone(),
            fits: matches!(result, Ok(Some(_))),
            ..Explanation::default()
        };
        // The explanation has its own deadline of the same length, so that it exists even if the search timed out.
        let evaluated = Self {
            deadline: self.limits.deadline(Instant::now()),
            ..*self
        };
        match evaluate_claims(&evaluated, &mut explanation) {
            Ok(()) => {}
            Err(error) => explanation.error = Some(error.to_string()),
        }
        match result {
            Ok(Some(results)) => {
                mark_allocated(&mut explanation, self.claims, &results);
                explanation.results = results;
            }
            Ok(None) => joint_conflicts::find(self, &mut explanation),
            Err(error) => {
                explanation.fatal = error.ends_attempt(self.gates.minor);
                explanation.error = Some(error.to_string());
            }
        }
        summary::write(&mut explanation);
        explanation
    }
}

/// The input of an explanation, and what is computed once for all of its requests.
struct Evaluation<'e, 'a> {
    query: &'e ResolvedQuery<'a>,
    in_use: &'e InUse<'a>,
    candidate_set: CandidateSet<'a>,
    /// By pool; created at the first device that consumes counters.
    counters: Vec<Option<PoolCounters<'e, 'a>>>,
}

/// Evaluates every device for every request. After the deadline only the requests that are complete are reported.
fn evaluate_claims(query: &ResolvedQuery<'_>, explanation: &mut Explanation) -> Result<(), Error> {
    let in_use = query.in_use();
    let candidate_set = query.candidate_set()?;
    explanation.pools = candidate_set.pools.iter().map(pool_report).collect();
    let mut evaluation = Evaluation {
        query,
        in_use: &in_use,
        counters: candidate_set.pools.iter().map(|_| None).collect(),
        candidate_set,
    };
    for claim in query.claims {
        let mut report = ClaimReport {
            claim: claim_name(claim),
            uid: claim.metadata.uid.clone(),
            already_allocated: allocation_of(claim).is_some(),
            summary: query.elsewhere(claim).unwrap_or_default(),
            ..ClaimReport::default()
        };
        if !report.already_allocated
            && let Err(late) = evaluation.evaluate_claim(claim, &mut report)
        {
            report.summary = format!("is not explained completely: {late}");
        }
        explanation.claims.push(report);
    }
    Ok(())
}

impl<'a> Evaluation<'_, 'a> {
    /// The only error is the deadline.
    fn evaluate_claim(
        &mut self,
        claim: &'a ResourceClaim,
        report: &mut ClaimReport,
    ) -> Result<(), Error> {
        for request in &claim.spec.devices.requests {
            for (part, alternative) in parts(request) {
                let evaluated = self.evaluate_request(claim, part)?;
                report.requests.push(RequestReport {
                    alternative,
                    ..evaluated
                });
            }
        }
        constraints::check(
            report,
            &Constraint::of_claim(claim, self.query.gates),
            &self.candidate_set,
            self.query.deadline,
        )
    }

    fn evaluate_request(
        &mut self,
        claim: &'a ResourceClaim,
        request: Request<'a>,
    ) -> Result<RequestReport, Error> {
        let mut report = RequestReport {
            request: request.name(),
            class: request.class.to_owned(),
            all: request.mode == dra_api::ALL,
            needed: if request.count == 0 { 1 } else { request.count },
            admin_access: request.admin_access,
            ..RequestReport::default()
        };
        match new_task(claim, request, self.query.classes, &mut self.candidate_set) {
            Ok(task) => self.evaluate_devices(claim, &task, &mut report)?,
            Err(error) => report.error = Some(error.to_string()),
        }
        Ok(report)
    }

    fn evaluate_devices(
        &mut self,
        claim: &'a ResourceClaim,
        task: &Task<'a>,
        report: &mut RequestReport,
    ) -> Result<(), Error> {
        let constraints = Constraint::of_request(claim, &task.request, self.query.gates);
        for index in 0..self.candidate_set.candidates.len() {
            self.query.deadline.check()?;
            let device = self.evaluate_device(task, index, &constraints);
            if report.error.is_none() {
                report.error = device.failure();
            }
            report.devices.push(device);
        }
        for pool in &self.candidate_set.pools {
            report.devices.extend(rejections::unusable_devices(pool));
        }
        report.count();
        if report.all {
            report.needed = i64::try_from(report.matching).unwrap_or(i64::MAX);
        }
        Ok(())
    }
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

fn pool_report(pool: &pools::Pool<'_>) -> PoolReport {
    PoolReport {
        driver: pool.driver.to_owned(),
        pool: pool.name.to_owned(),
        devices: pool
            .found
            .iter()
            .map(|slice| slice.spec.devices.len())
            .sum(),
        problem: problem(pool),
    }
}

/// The reason why a pool is not usable.
fn problem(pool: &pools::Pool<'_>) -> Option<String> {
    Some(format!("the pool {}", pool.state.problem()?))
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
