//! Whether a constraint can hold at all: how many available devices share a value, or differ in it.
//!
//! Only what is certain is said: a group of devices that is too small for one of the requests. That groups which are large
//! enough are taken by other requests is found by the search, not here.

use std::collections::BTreeMap;

use super::report::{
    ClaimReport, ConstraintReport, DeviceReport, Rejection, RequestReport, ValueReport,
};
use super::verdict::value_text;
use crate::constraints::{Constraint, look_up};
use crate::plan::Match;

/// Devices by value.
type Values = BTreeMap<String, Vec<String>>;

pub(super) fn judge(
    report: &mut ClaimReport,
    constraints: &[Constraint<'_>],
    matching: &Match<'_>,
) {
    // What each constraint has to choose from is seen before any of them rejects.
    let values: Vec<Values> = constraints
        .iter()
        .map(|constraint| values(report, constraint, matching))
        .collect();
    for (constraint, values) in constraints.iter().zip(values) {
        let judged = if constraint.distinct {
            judge_distinct(report, constraint, values)
        } else {
            judge_match(report, constraint, values, matching)
        };
        report.constraints.push(judged);
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

/// Whether some request cannot do without the constraint: no alternative of it escapes.
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

fn value_of(
    device: &DeviceReport,
    constraint: &Constraint<'_>,
    matching: &Match<'_>,
) -> Option<String> {
    let candidate = matching.candidates.get(device.candidate?)?;
    look_up(candidate.device, candidate.id(), constraint.attribute).map(value_text)
}

/// The values of the available devices of the requests that the constraint is about.
fn values(report: &ClaimReport, constraint: &Constraint<'_>, matching: &Match<'_>) -> Values {
    let mut values = Values::new();
    for request in &report.requests {
        if !named(constraint, &request.request) {
            continue;
        }
        for device in request.devices.iter().filter(|device| device.accepted) {
            if let Some(value) = value_of(device, constraint, matching) {
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

/// The device's name; with driver and pool where another pool of the node has a device of that name.
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

fn judge_match(
    report: &mut ClaimReport,
    constraint: &Constraint<'_>,
    values: Values,
    matching: &Match<'_>,
) -> ConstraintReport {
    let mut judged = new_report(report, constraint, values);
    let mut possible = false;
    for group in &judged.values {
        let Some(reason) = too_small(report, constraint, matching, &group.value) else {
            possible = true;
            continue;
        };
        for request in &mut report.requests {
            if !named(constraint, &request.request) {
                continue;
            }
            for device in request.devices.iter_mut().filter(|device| device.accepted) {
                if value_of(device, constraint, matching).as_ref() == Some(&group.value) {
                    device.accepted = false;
                    device.rejections.push(Rejection::Constraint {
                        attribute: constraint.attribute.to_owned(),
                        value: Some(group.value.clone()),
                        message: format!(
                            "with {} = {}, {reason}",
                            constraint.attribute, group.value
                        ),
                    });
                }
            }
        }
    }
    if !possible && is_bound(report, constraint) {
        judged.problem = Some(format!(
            "there is no value of {} that enough available devices share",
            constraint.attribute
        ));
    }
    judged
}

/// Why the devices with this value cannot serve all of the constraint's requests.
fn too_small(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    matching: &Match<'_>,
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
            .filter(|device| value_of(device, constraint, matching).as_deref() == Some(value))
            .count();
        let enough = i64::try_from(with_value).unwrap_or(i64::MAX) >= request.needed;
        // One alternative that can be served is enough, and so is one that the constraint is not about.
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

fn judge_distinct(
    report: &ClaimReport,
    constraint: &Constraint<'_>,
    values: Values,
) -> ConstraintReport {
    let different = values.len();
    let mut judged = new_report(report, constraint, values);
    let needed: i64 = report
        .requests
        .iter()
        .filter(|request| !request.alternative && named(constraint, &request.request))
        .map(|request| request.needed)
        .fold(0, i64::saturating_add);
    if i64::try_from(different).unwrap_or(i64::MAX) < needed {
        judged.problem = Some(format!(
            "{needed} devices must differ in {}, but the available ones have only {different} different values",
            constraint.attribute
        ));
    }
    judged
}
