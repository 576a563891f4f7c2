//! ResourceClaim and ResourceClaimTemplate: requests, constraints and configuration.

use std::collections::BTreeMap;

use super::class::{MAX_CONFIGS, expression, opaque, selectors};
use super::path::{Path, Report};
use super::{allocation, names, validate_meta};
use crate::claim::{
    ALL, CapacityRequirements, DeviceClaim, DeviceConstraint, DeviceDerivedAttribute,
    DeviceRequest, DeviceToleration, EXACT_COUNT, ResourceClaim, ResourceClaimTemplate,
};
use crate::class::DeviceSelector;

const MAX_REQUESTS: usize = 32;
const MAX_CONSTRAINTS: usize = 32;
const MAX_FIRST_AVAILABLE: usize = 8;
const MAX_TOLERATIONS: usize = 16;
const MAX_DERIVED_ATTRIBUTES: usize = 32;
pub(super) const EFFECTS: [&str; 3] = ["None", "NoSchedule", "NoExecute"];

/// The names of requests, each with the names of its subrequests.
type RequestNames<'a> = BTreeMap<&'a str, Vec<&'a str>>;

pub(super) fn validate(claim: &ResourceClaim, report: &mut Report) {
    validate_meta(&claim.metadata, true, report);
    let root = Path::root();
    devices(&claim.spec.devices, &root.member("spec"), report);
    if let Some(status) = &claim.status {
        allocation::validate(status, &root.member("status"), report);
    }
}

pub(super) fn validate_template(template: &ResourceClaimTemplate, report: &mut Report) {
    validate_meta(&template.metadata, true, report);
    let root = Path::root();
    devices(
        &template.spec.spec.devices,
        &root.member("spec").member("spec"),
        report,
    );
}

fn devices(claim: &DeviceClaim, path: &Path<'_>, report: &mut Report) {
    let path = path.member("devices");
    let names: RequestNames<'_> = claim
        .requests
        .iter()
        .map(|request| {
            (
                request.name.as_str(),
                request
                    .first_available
                    .iter()
                    .map(|sub| sub.name.as_str())
                    .collect(),
            )
        })
        .collect();
    let requests = path.member("requests");
    if report.at_most(MAX_REQUESTS, claim.requests.len(), &requests) {
        for (index, request) in claim.requests.iter().enumerate() {
            self::request(request, &requests.index(index), report);
        }
        report.unique(
            claim.requests.iter().map(|request| request.name.as_str()),
            &requests,
        );
    }
    let constraints = path.member("constraints");
    if report.at_most(MAX_CONSTRAINTS, claim.constraints.len(), &constraints) {
        for (index, constraint) in claim.constraints.iter().enumerate() {
            self::constraint(constraint, &names, &constraints.index(index), report);
        }
    }
    let configs = path.member("config");
    if report.at_most(MAX_CONFIGS, claim.config.len(), &configs) {
        for (index, config) in claim.config.iter().enumerate() {
            let path = configs.index(index);
            references(&config.requests, &names, &path.member("requests"), report);
            opaque(config.opaque.as_ref(), &path, report);
        }
    }
}

/// The fields that `exactly` and an entry of `firstAvailable` share.
struct RequestFields<'a> {
    class: &'a str,
    selectors: &'a [DeviceSelector],
    mode: &'a str,
    count: i64,
    tolerations: &'a [DeviceToleration],
    capacity: Option<&'a CapacityRequirements>,
    derived: &'a [DeviceDerivedAttribute],
}

fn request(request: &DeviceRequest, path: &Path<'_>, report: &mut Report) {
    names::label(&request.name, &path.member("name"), report);
    match (&request.exactly, request.first_available.as_slice()) {
        (None, []) => report.fail(path, "needs one of exactly and firstAvailable"),
        (Some(_), [_, ..]) => report.fail(
            path,
            "has both exactly and firstAvailable; only one is allowed",
        ),
        (Some(exactly), []) => {
            let shared = RequestFields {
                class: &exactly.device_class_name,
                selectors: &exactly.selectors,
                mode: &exactly.allocation_mode,
                count: exactly.count,
                tolerations: &exactly.tolerations,
                capacity: exactly.capacity.as_ref(),
                derived: &exactly.derived_attributes,
            };
            request_fields(&shared, &path.member("exactly"), report);
        }
        (None, subs) => {
            let path = path.member("firstAvailable");
            if !report.at_most(MAX_FIRST_AVAILABLE, subs.len(), &path) {
                return;
            }
            for (index, sub) in subs.iter().enumerate() {
                let path = path.index(index);
                names::label(&sub.name, &path.member("name"), report);
                let shared = RequestFields {
                    class: &sub.device_class_name,
                    selectors: &sub.selectors,
                    mode: &sub.allocation_mode,
                    count: sub.count,
                    tolerations: &sub.tolerations,
                    capacity: sub.capacity.as_ref(),
                    derived: &sub.derived_attributes,
                };
                request_fields(&shared, &path, report);
            }
            report.unique(subs.iter().map(|sub| sub.name.as_str()), &path);
        }
    }
}

fn request_fields(fields: &RequestFields<'_>, path: &Path<'_>, report: &mut Report) {
    names::subdomain(fields.class, &path.member("deviceClassName"), report);
    selectors(fields.selectors, &path.member("selectors"), report);
    let count = path.member("count");
    match fields.mode {
        ALL if fields.count != 0 => {
            report.fail(&count, "must be left out when allocationMode is All")
        }
        "" | EXACT_COUNT if fields.count < 0 => {
            report.fail(
                &count,
                format!("must be greater than 0, is {}", fields.count),
            );
        }
        "" | EXACT_COUNT | ALL => {}
        other => report.fail(
            &path.member("allocationMode"),
            format!("{other:?} is not one of {EXACT_COUNT}, {ALL}"),
        ),
    }
    tolerations(fields.tolerations, &path.member("tolerations"), report);
    for name in fields
        .capacity
        .iter()
        .flat_map(|capacity| capacity.requests.keys())
    {
        names::qualified(name, &path.member("capacity").member("requests"), report);
    }
    let derived = path.member("derivedAttributes");
    if report.at_most(MAX_DERIVED_ATTRIBUTES, fields.derived.len(), &derived) {
        for (index, attribute) in fields.derived.iter().enumerate() {
            let path = derived.index(index);
            names::fully_qualified(&attribute.name, &path.member("name"), report);
            if attribute.expression.is_empty() {
                expression("", &path.member("expression"), report);
            }
        }
    }
}

pub(super) fn tolerations(tolerations: &[DeviceToleration], path: &Path<'_>, report: &mut Report) {
    if !report.at_most(MAX_TOLERATIONS, tolerations.len(), path) {
        return;
    }
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        if !toleration.key.is_empty() {
            names::label_name(&toleration.key, &path.member("key"), report);
        }
        match toleration.operator.as_str() {
            "Exists" if !toleration.value.is_empty() => {
                report.fail(
                    &path.member("value"),
                    "must be left out when operator is Exists",
                );
            }
            "Exists" => {}
            "" | "Equal" => names::label_value(&toleration.value, &path.member("value"), report),
            other => report.fail(
                &path.member("operator"),
                format!("{other:?} is not one of Exists, Equal"),
            ),
        }
        let effect = toleration.effect.as_str();
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            report.fail(
                &path.member("effect"),
                format!("{effect:?} is not one of {}", EFFECTS.join(", ")),
            );
        }
    }
}

fn constraint(
    constraint: &DeviceConstraint,
    names: &RequestNames<'_>,
    path: &Path<'_>,
    report: &mut Report,
) {
    references(
        &constraint.requests,
        names,
        &path.member("requests"),
        report,
    );
    match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), None) => names::fully_qualified(name, &path.member("matchAttribute"), report),
        (None, Some(name)) => {
            names::fully_qualified(name, &path.member("distinctAttribute"), report)
        }
        (None, None) => report.fail(path, "needs one of matchAttribute and distinctAttribute"),
        (Some(_), Some(_)) => {
            report.fail(
                path,
                "has both matchAttribute and distinctAttribute; only one is allowed",
            );
        }
    }
}

fn references(requests: &[String], names: &RequestNames<'_>, path: &Path<'_>, report: &mut Report) {
    if !report.at_most(MAX_REQUESTS, requests.len(), path) {
        return;
    }
    for (index, reference) in requests.iter().enumerate() {
        let known = match reference.split_once('/') {
            Some((request, sub)) => names.get(request).is_some_and(|subs| subs.contains(&sub)),
            None => names.contains_key(reference.as_str()),
        };
        if !known {
            let message =
                format!("{reference:?} is not a request of this claim (or request/subrequest)");
            report.fail(&path.index(index), message);
        }
    }
    report.unique(requests.iter().map(String::as_str), path);
}
