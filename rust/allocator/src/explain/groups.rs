//! Checks whether a constraint can be satisfied: how many available devices share a value, or have different values.
//!
//! Only certain conflicts are reported: groups of devices that are too small for a request. The search detects conflicts
//! between requests for the same group.

use std::collections::BTreeMap;

use super::rejections::value_text;
use super::report::{
    ClaimReport, ConstraintReport, DeviceReport, Rejection, RequestReport, ValueReport,
};
use crate::constraints::{Constraint, look_up};
use crate::plan::CandidateSet;
use crate::value_set::ValueSet;

/// Devices by value. A device whose attribute is a list has several values.
type Values = BTreeMap<String, Vec<String>>;

pub(super) fn check(
    report: &mut ClaimReport,
    constraints: &[Constraint<'_>],
    candidate_set: &CandidateSet<'_>,
) {
    // The values of all constraints are collected before any constraint rejects devices.
    let values: Vec<Values> = constraints
        .iter()
        .map(|constraint| values(report, constraint, candidate_set))
        .collect();
    for (constraint, values) in constraints.iter().zip(values) {
        let evaluated = if constraint.distinct {
            check_distinct(report, constraint, values)
        } else {
            check_match(report, constraint, values, candidate_set)
        };
        report.constraints.push(evaluated);
    }
    for request in &mut report.requests {
        request.count();
    }
}

fn named(constraint: &Constraint<'_>, request: &str) -> bool {
    let main = request.split('/').next().unwrap_or(request);
    constraint.spec.requests.is_empty()
        || constraint
            .spec
            .requests
            .iter()
            .any(|name| name == request || name == main)
}

/// Whether the constraint applies to a request, including all of its alternatives.
fn is_bound(report: &ClaimReport, constraint: &Constraint<'_>) -> bool {
    let main = |request: &str| request.split('/').next().unwrap_or_default().to_owned();
    report.requests.iter().any(|request| {
        report
            .requests
            .iter()
            .filter(|other| main(&other.request) == main(&request.request))
            .all(|other| named(constraint, &other.request))
    })
}

/// The device's value, or each value of its list if lists are compared.
fn values_of(
    device: &DeviceReport,
    constraint: &Constraint<'_>,
    candidate_set: &CandidateSet<'_>,
) -> Vec<String> {
    let candidate = device
        .candidate
        .and_then(|index| candidate_set.candidates.get(index));
    let value = candidate.and_then(|found| look_up(found.device, found.id(), constraint.attribute));
    match value {
        Some(value) if candidate_set.gates.list_attributes => {
            ValueSet::of(value).map_or_else(Vec::new, |set| set.texts())
        }
        Some(value) => vec![value_text(value)],
        None => Vec::new(),
    }
}

/// The values of the available devices of the constraint's requests.
fn values(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    candidate_set: &CandidateSet<'_>,
) -> Values {
    let mut values = Values::new();
    for request in &report.requests {
        if !named(constraint, &request.request) {
            continue;
        }
        for device in request.devices.iter().filter(|device| device.accepted) {
            for value in values_of(device, constraint, candidate_set) {
                let devices = values.entry(value).or_default();
                let name = shortest_name(device, request);
                if !devices.contains(&name) {
                    devices.push(name);
                }
            }
        }
    }
    values
}

/// The device's name, with driver and pool if another pool of the node has a device of the same name.
fn shortest_name(device: &DeviceReport, request: &RequestReport) -> String {
    let same = |other: &&DeviceReport| other.device == device.device;
    if request.devices.iter().filter(same).count() > 1 {
        format!("{}/{}/{}", device.driver, device.pool, device.device)
    } else {
        device.device.clone()
    }
}

fn new_report(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: Values,
) -> ConstraintReport {
    ConstraintReport {
        attribute: constraint.attribute.to_owned(),
        distinct: constraint.distinct,
        requests: report
            .requests
            .iter()
            .map(|request| request.request.clone())
            .filter(|request| named(constraint, request))
            .collect(),
        values: values
            .into_iter()
            .map(|(value, devices)| ValueReport { value, devices })
            .collect(),
        problem: None,
    }
}

fn check_match(
    report: &mut ClaimReport,
    constraint: &Constraint<'_>,
    values: Values,
    candidate_set: &CandidateSet<'_>,
) -> ConstraintReport {
    let mut evaluated = new_report(report, constraint, values);
    let reasons: BTreeMap<&str, String> = evaluated
        .values
        .iter()
        .filter_map(|group| {
            let reason = too_small(report, constraint, candidate_set, &group.value)?;
            Some((group.value.as_str(), reason))
        })
        .collect();
    for request in &mut report.requests {
        if !named(constraint, &request.request) {
            continue;
        }
        for device in request.devices.iter_mut().filter(|device| device.accepted) {
            let values = values_of(device, constraint, candidate_set);
            let message = |value: &String| {
                let reason = reasons.get(value.as_str())?;
                Some(format!("with {} = {value}, {reason}", constraint.attribute))
            };
            // A device with several values is rejected if none of them is shared by enough devices.
            let messages: Option<Vec<String>> = values.iter().map(message).collect();
            let Some(messages) = messages.filter(|messages| !messages.is_empty()) else {
                continue;
            };
            device.accepted = false;
            device.rejections.push(Rejection::Constraint {
                attribute: constraint.attribute.to_owned(),
                value: Some(values.join(", ")),
                message: messages.join("; "),
            });
        }
    }
    let possible = reasons.len() < evaluated.values.len();
    if !possible && is_bound(report, constraint) {
        evaluated.problem = Some(format!(
            "no value of {} is shared by enough available devices",
            constraint.attribute
        ));
    }
    evaluated
}

/// The reason why the devices with this value do not suffice for all of the constraint's requests.
fn too_small(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    candidate_set: &CandidateSet<'_>,
    value: &str,
) -> Option<String> {
    let mut reason = None;
    let mut served: Vec<&str> = Vec::new();
    for request in &report.requests {
        let main = request.request.split('/').next().unwrap_or_default();
        let with_value = request
            .devices
            .iter()
            .filter(|device| device.accepted)
            .filter(|device| {
                let values = values_of(device, constraint, candidate_set);
                values.iter().any(|other| other == value)
            })
            .count();
        let enough = i64::try_from(with_value).unwrap_or(i64::MAX) >= request.needed;
        // One alternative with enough devices suffices, and so does one to which the constraint does not apply.
        if enough || !named(constraint, &request.request) {
            served.push(main);
        } else {
            reason = reason.or_else(|| {
                Some((
                    main,
                    format!(
                        "{with_value} {} available for request {}, {} needed",
                        if with_value == 1 {
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
                    ),
                ))
            });
        }
        if let Some((unserved, _)) = &reason
            && served.contains(unserved)
        {
            reason = None;
        }
    }
    reason.map(|(_, text)| text)
}

fn check_distinct(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: Values,
) -> ConstraintReport {
    let different = values.len();
    let mut evaluated = new_report(report, constraint, values);
    let needed: i64 = report
        .requests
        .iter()
        .filter(|request| !request.alternative && named(constraint, &request.request))
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
