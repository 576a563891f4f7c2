//! Checks whether a constraint can be satisfied: how many available devices share a value, or have different values.
//!
//! Only certain conflicts are reported: groups of devices that are too small for a request. The search detects conflicts
//! between requests for the same group.

use super::report::{ClaimReport, ConstraintReport, Rejection, RequestReport, ValueReport};
use super::values::{Values, repeated_names};
use crate::constraints::Constraint;
use crate::error::Error;
use crate::plan::CandidateSet;
use crate::query::Deadline;

/// Adds the reports of the constraints, and the rejections of devices that share their value with too few others.
pub(super) fn check(
    report: &mut ClaimReport,
    constraints: &[Constraint<'_>],
    candidate_set: &CandidateSet<'_>,
    deadline: Deadline,
) -> Result<(), Error> {
    // The values of all constraints are collected before any constraint rejects devices.
    let repeated = repeated_names(report);
    let values: Vec<Values> = constraints
        .iter()
        .map(|constraint| Values::gather(report, constraint, candidate_set, &repeated, deadline))
        .collect::<Result<_, _>>()?;
    let mut pairs = constraints.iter().zip(&values);
    let checked = pairs.try_for_each(|(constraint, values)| {
        let evaluated = if constraint.distinct {
            check_distinct(report, constraint, values)
        } else {
            check_match(report, constraint, values, deadline)?
        };
        report.constraints.push(evaluated);
        Ok(())
    });
    for request in &mut report.requests {
        request.count();
    }
    checked
}

/// The name of the request, without that of the alternative.
fn main_name(request: &RequestReport) -> &str {
    request.request.split('/').next().unwrap_or_default()
}

/// Whether the constraint applies to the request.
pub(super) fn named(constraint: &Constraint<'_>, request: &RequestReport) -> bool {
    let main = main_name(request);
    constraint.spec.requests.is_empty()
        || constraint
            .spec
            .requests
            .iter()
            .any(|name| *name == request.request || name == main)
}

/// Each request, as its alternatives.
fn alternatives(report: &ClaimReport) -> impl Iterator<Item = &[RequestReport]> {
    report
        .requests
        .chunk_by(|one, next| main_name(one) == main_name(next))
}

/// Whether the constraint applies to a request, including all of its alternatives.
fn is_bound(report: &ClaimReport, constraint: &Constraint<'_>) -> bool {
    alternatives(report).any(|parts| parts.iter().all(|part| named(constraint, part)))
}

fn new_report(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: &Values,
) -> ConstraintReport {
    ConstraintReport {
        attribute: constraint.attribute.to_owned(),
        distinct: constraint.distinct,
        requests: report
            .requests
            .iter()
            .filter(|request| named(constraint, request))
            .map(|request| request.request.clone())
            .collect(),
        values: values
            .numbers
            .iter()
            .map(|(value, number)| ValueReport {
                value: value.clone(),
                devices: values.devices[*number].clone(),
            })
            .collect(),
        problem: None,
    }
}

fn check_match(
    report: &mut ClaimReport,
    constraint: &Constraint<'_>,
    values: &Values,
    deadline: Deadline,
) -> Result<ConstraintReport, Error> {
    let mut evaluated = new_report(report, constraint, values);
    let shortages = shortages(report, constraint, values, deadline)?;
    let texts = values.texts();
    for request in &mut report.requests {
        if !named(constraint, request) {
            continue;
        }
        for device in request.devices.iter_mut().filter(|device| device.accepted) {
            deadline.check()?;
            let numbers = values.of(device);
            let message = |number: &usize| {
                let shortage = shortages[*number].as_ref()?;
                let (attribute, value) = (constraint.attribute, texts[*number]);
                Some(format!("with {attribute} = {value}, {shortage}"))
            };
            // A device with several values is rejected if none of them is shared by enough devices.
            let messages: Option<Vec<String>> = numbers.iter().map(message).collect();
            let Some(messages) = messages.filter(|messages| !messages.is_empty()) else {
                continue;
            };
            let values: Vec<&str> = numbers.iter().map(|number| texts[*number]).collect();
            device.accepted = false;
            device.rejections.push(Rejection::Constraint {
                attribute: constraint.attribute.to_owned(),
                value: Some(values.join(", ")),
                message: messages.join("; "),
            });
        }
    }
    let possible = shortages.iter().any(Option::is_none);
    if !possible && is_bound(report, constraint) {
        evaluated.problem = Some(format!(
            "no value of {} is shared by enough available devices",
            constraint.attribute
        ));
    }
    Ok(evaluated)
}

/// By number of the value: why the devices with it do not suffice for one of the claim's requests.
fn shortages(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: &Values,
    deadline: Deadline,
) -> Result<Vec<Option<String>>, Error> {
    let mut shortages = vec![None; values.devices.len()];
    for parts in alternatives(report) {
        // One alternative with enough devices suffices, and so does one to which the constraint does not apply.
        if !parts.iter().all(|part| named(constraint, part)) {
            continue;
        }
        let mut counts = Vec::new();
        for part in parts {
            deadline.check()?;
            counts.push((part, values.counts(part)));
        }
        for (number, shortage) in shortages.iter_mut().enumerate() {
            let is_short = counts
                .iter()
                .all(|(part, counts)| counts[number] < part.needed);
            if is_short && shortage.is_none() {
                let (first, counts) = &counts[0];
                *shortage = Some(shortage_text(first, counts[number]));
            }
        }
    }
    Ok(shortages)
}

fn shortage_text(request: &RequestReport, available: i64) -> String {
    format!(
        "{available} {} available for request {}, {} needed",
        if available == 1 {
            "device is"
        } else {
            "devices are"
        },
        request.request,
        if request.needed == 1 {
            "1 is".to_owned()
        } else {
            format!("{} are", request.needed)
        },
    )
}

fn check_distinct(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: &Values,
) -> ConstraintReport {
    let different = values.numbers.len();
    let mut evaluated = new_report(report, constraint, values);
    let needed: i64 = report
        .requests
        .iter()
        .filter(|request| !request.alternative && named(constraint, request))
        .map(|request| request.needed)
        .fold(0, i64::saturating_add);
    if i64::try_from(different).unwrap_or(i64::MAX) < needed {
        evaluated.problem = Some(format!(
            "{needed} devices must differ in {}, but the available devices have only {different} different values",
            constraint.attribute
        ));
    }
    evaluated
}
