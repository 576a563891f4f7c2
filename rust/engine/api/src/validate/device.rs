//! One device of a slice: attributes, capacity, counters, taints, conditions.

use super::claim::EFFECTS;
use super::path::{Path, Report};
use super::{names, policy, slice};
use crate::device::{Device, DeviceAttribute, DeviceTaint};
use crate::version::Version;

/// Limit for the number of attributes plus the number of capacities of a device.
pub const MAX_ATTRIBUTES_AND_CAPACITIES: usize = 32;
/// Limit for the values of all attributes; each entry of a list counts.
const MAX_ATTRIBUTE_VALUES: usize = 48;
pub const MAX_TAINTS: usize = 16;
const MAX_VALUE_BYTES: usize = 64;
const MAX_COUNTER_CONSUMPTIONS: usize = 2;
const MAX_COMPATIBILITY_GROUPS: usize = 2;
const MAX_BINDING_CONDITIONS: usize = 4;

/// Where the node selection of a device is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    Slice,
    Device,
}

pub(super) fn validate(
    device: &Device,
    placement: Placement,
    path: &Path<'_>,
    report: &mut Report,
) {
    names::label(&device.name, &path.member("name"), report);
    let entries = device.attributes.len() + device.capacity.len();
    if entries > MAX_ATTRIBUTES_AND_CAPACITIES {
        report.fail(
            path,
            format!("has {entries} attributes and capacities, the limit is {MAX_ATTRIBUTES_AND_CAPACITIES}"),
        );
    }
    let values: usize = device.attributes.values().map(count_values).sum();
    if values > MAX_ATTRIBUTE_VALUES {
        report.fail(
            path,
            format!("has {values} attribute values, the limit is {MAX_ATTRIBUTE_VALUES}"),
        );
    }
    let attributes = path.member("attributes");
    for (name, attribute) in device.attributes.iter() {
        names::qualified(name, &attributes, report);
        self::attribute(attribute, &attributes.key(name), report);
    }
    let capacities = path.member("capacity");
    let shared = device.allow_multiple_allocations == Some(true);
    for (name, capacity) in device.capacity.iter() {
        names::qualified(name, &capacities, report);
        policy::validate(capacity, shared, &capacities.key(name), report);
    }
    consumption(device, &path.member("consumesCounters"), report);
    let taints = path.member("taints");
    if report.at_most(MAX_TAINTS, device.taints.len(), &taints) {
        for (index, taint) in device.taints.iter().enumerate() {
            self::taint(taint, &taints.index(index), report);
        }
    }
    nodes(device, placement, path, report);
    conditions(device, path, report);
}

pub(super) fn is_list(attribute: &DeviceAttribute) -> bool {
    attribute.ints.is_some()
        || attribute.bools.is_some()
        || attribute.strings.is_some()
        || attribute.versions.is_some()
}

/// The lengths of an attribute's lists.
fn lists(attribute: &DeviceAttribute) -> [(&'static str, Option<usize>); 4] {
    [
        ("ints", attribute.ints.as_ref().map(Vec::len)),
        ("bools", attribute.bools.as_ref().map(Vec::len)),
        ("strings", attribute.strings.as_ref().map(Vec::len)),
        ("versions", attribute.versions.as_ref().map(Vec::len)),
    ]
}

fn count_values(attribute: &DeviceAttribute) -> usize {
    let listed: usize = lists(attribute)
        .iter()
        .filter_map(|(_, length)| *length)
        .sum();
    listed.max(1)
}

fn attribute(attribute: &DeviceAttribute, path: &Path<'_>, report: &mut Report) {
    let mut set = usize::from(attribute.int.is_some()) + usize::from(attribute.bool.is_some());
    if let Some(text) = &attribute.string {
        set += 1;
        string(text, &path.member("string"), report);
    }
    if let Some(text) = &attribute.version {
        set += 1;
        version(text, &path.member("version"), report);
    }
    for (name, length) in lists(attribute) {
        set += usize::from(length.is_some());
        if length == Some(0) {
            report.fail(&path.member(name), "must not be an empty list");
        }
    }
    let strings = path.member("strings");
    for (index, text) in attribute.strings.iter().flatten().enumerate() {
        string(text, &strings.index(index), report);
    }
    let versions = path.member("versions");
    for (index, text) in attribute.versions.iter().flatten().enumerate() {
        version(text, &versions.index(index), report);
    }
    if set != 1 {
        report.fail(path, format!("must have exactly one value, has {set}"));
    }
}

fn string(text: &str, path: &Path<'_>, report: &mut Report) {
    if text.len() > MAX_VALUE_BYTES {
        report.fail(
            path,
            format!("has {} bytes, the limit is {MAX_VALUE_BYTES}", text.len()),
        );
    }
}

fn version(text: &str, path: &Path<'_>, report: &mut Report) {
    string(text, path, report);
    if let Err(error) = text.parse::<Version>() {
        report.fail(path, error.to_string());
    }
}

fn consumption(device: &Device, path: &Path<'_>, report: &mut Report) {
    if !report.at_most(
        MAX_COUNTER_CONSUMPTIONS,
        device.consumes_counters.len(),
        path,
    ) {
        return;
    }
    for (index, consumption) in device.consumes_counters.iter().enumerate() {
        let path = path.index(index);
        names::label(&consumption.counter_set, &path.member("counterSet"), report);
        slice::counters(&consumption.counters, &path.member("counters"), report);
        let groups = path.member("compatibilityGroups");
        report.at_most(
            MAX_COMPATIBILITY_GROUPS,
            consumption.compatibility_groups.len(),
            &groups,
        );
    }
    report.unique(
        device
            .consumes_counters
            .iter()
            .map(|consumption| consumption.counter_set.as_str()),
        path,
    );
}

fn taint(taint: &DeviceTaint, path: &Path<'_>, report: &mut Report) {
    names::label_name(&taint.key, &path.member("key"), report);
    names::label_value(&taint.value, &path.member("value"), report);
    match taint.effect.as_str() {
        "" => report.fail(&path.member("effect"), "is missing"),
        effect if EFFECTS.contains(&effect) => {}
        other => report.fail(
            &path.member("effect"),
            format!("{other:?} is not one of {}", EFFECTS.join(", ")),
        ),
    }
}

fn nodes(device: &Device, placement: Placement, path: &Path<'_>, report: &mut Report) {
    if let Some(node) = &device.node_name {
        names::subdomain(node, &path.member("nodeName"), report);
    }
    if device.all_nodes == Some(false) {
        report.fail(&path.member("allNodes"), "must be true or left out");
    }
    let set = usize::from(device.node_name.is_some())
        + usize::from(device.node_selector.is_some())
        + usize::from(device.all_nodes == Some(true));
    match (placement, set) {
        (Placement::Slice, 0) | (Placement::Device, 1) => {}
        (Placement::Slice, _) => report.fail(
            path,
            "has nodeName, nodeSelector or allNodes, which need perDeviceNodeSelection in the slice",
        ),
        (Placement::Device, _) => report.fail(
            path,
            "needs exactly one of nodeName, nodeSelector and allNodes: the slice has perDeviceNodeSelection",
        ),
    }
}

fn conditions(device: &Device, path: &Path<'_>, report: &mut Report) {
    let wanted = &device.binding_conditions;
    let failures = &device.binding_failure_conditions;
    for (name, conditions) in [
        ("bindingConditions", wanted),
        ("bindingFailureConditions", failures),
    ] {
        let path = path.member(name);
        if report.at_most(MAX_BINDING_CONDITIONS, conditions.len(), &path) {
            for (index, condition) in conditions.iter().enumerate() {
                names::label_name(condition, &path.index(index), report);
            }
            report.unique(conditions.iter().map(String::as_str), &path);
        }
    }
    if wanted.is_empty() != failures.is_empty() {
        report.fail(
            path,
            "has only one of bindingConditions and bindingFailureConditions; it needs both or none",
        );
    }
    if let Some(both) = failures.iter().find(|condition| wanted.contains(condition)) {
        report.fail(
            &path.member("bindingFailureConditions"),
            format!("{both:?} is in bindingConditions too"),
        );
    }
}
