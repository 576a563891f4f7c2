//! ResourceSlice: pool, node selection, numbers of devices and counter sets.

use super::device::{self, Placement};
use super::path::{Path, Report};
use super::{names, validate_meta};
use crate::codec::FieldError;
use crate::device::{Counter, CounterSet, Device};
use crate::slice::{ResourcePool, ResourceSlice, ResourceSliceSpec};

pub const MAX_DEVICES: usize = 128;
/// Limit if any device of the slice has taints, consumes counters or has a list attribute.
pub const MAX_DEVICES_WITH_FEATURES: usize = 64;
pub const MAX_COUNTER_SETS: usize = 8;
pub const MAX_COUNTERS: usize = 32;

/// The errors of a slice; field paths start at `spec` or `metadata`.
pub fn validate_slice(slice: &ResourceSlice) -> Vec<FieldError> {
    let mut report = Report::default();
    validate(slice, &mut report);
    report.errors
}

/// The errors of a device of a slice with `nodeName`; field paths start at the device.
pub fn validate_device(device: &Device) -> Vec<FieldError> {
    let mut report = Report::default();
    device::validate(device, Placement::Slice, &Path::root(), &mut report);
    report.errors
}

/// The errors of a counter set; field paths start at the set.
pub fn validate_counter_set(set: &CounterSet) -> Vec<FieldError> {
    let mut report = Report::default();
    counter_set(set, &Path::root(), &mut report);
    report.errors
}

pub(super) fn validate(slice: &ResourceSlice, report: &mut Report) {
    validate_meta(&slice.metadata, false, report);
    let root = Path::root();
    let path = root.member("spec");
    let spec = &slice.spec;
    names::driver(&spec.driver, &path.member("driver"), report);
    pool(&spec.pool, &path.member("pool"), report);
    placement(spec, &path, report);
    if !spec.devices.is_empty() && !spec.shared_counters.is_empty() {
        report.fail(
            &path,
            "has both devices and sharedCounters; counters need a separate slice",
        );
    }
    devices(spec, &path.member("devices"), report);
    let counters = path.member("sharedCounters");
    if report.at_most(MAX_COUNTER_SETS, spec.shared_counters.len(), &counters) {
        for (index, set) in spec.shared_counters.iter().enumerate() {
            counter_set(set, &counters.index(index), report);
        }
        report.unique(
            spec.shared_counters.iter().map(|set| set.name.as_str()),
            &counters,
        );
    }
    if let Some(name) = &spec.partition_type_attribute {
        names::fully_qualified(name, &path.member("partitionTypeAttribute"), report);
    }
    skip_node_operations(
        &spec.skip_node_operations,
        &path.member("skipNodeOperations"),
        report,
    );
}

fn pool(pool: &ResourcePool, path: &Path<'_>, report: &mut Report) {
    names::pool(&pool.name, &path.member("name"), report);
    if pool.resource_slice_count <= 0 {
        report.fail(&path.member("resourceSliceCount"), "must be greater than 0");
    }
    if pool.generation < 0 {
        report.fail(&path.member("generation"), "must not be negative");
    }
}

fn placement(spec: &ResourceSliceSpec, path: &Path<'_>, report: &mut Report) {
    let mut set = Vec::new();
    if let Some(node) = &spec.node_name {
        set.push("nodeName");
        names::subdomain(node, &path.member("nodeName"), report);
    }
    if let Some(selector) = &spec.node_selector {
        set.push("nodeSelector");
        if selector.node_selector_terms.len() != 1 {
            let selector = path.member("nodeSelector");
            report.fail(
                &selector.member("nodeSelectorTerms"),
                "must have exactly one term",
            );
        }
    }
    for (name, value) in [
        ("allNodes", spec.all_nodes),
        ("perDeviceNodeSelection", spec.per_device_node_selection),
    ] {
        match value {
            None => {}
            Some(true) => set.push(name),
            Some(false) => report.fail(&path.member(name), "must be true or left out"),
        }
    }
    match set.as_slice() {
        [_] => {}
        [] => report.fail(
            path,
            "needs one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection",
        ),
        several => report.fail(
            path,
            format!("has {}; only one is allowed", several.join(" and ")),
        ),
    }
}

fn devices(spec: &ResourceSliceSpec, path: &Path<'_>, report: &mut Report) {
    let featured = spec.devices.iter().any(|device| {
        let list = device.attributes.values().any(device::is_list);
        list || !device.taints.is_empty() || !device.consumes_counters.is_empty()
    });
    let limit = if featured {
        MAX_DEVICES_WITH_FEATURES
    } else {
        MAX_DEVICES
    };
    if !report.at_most(limit, spec.devices.len(), path) {
        return;
    }
    let placement = match spec.per_device_node_selection {
        Some(true) => Placement::Device,
        _ => Placement::Slice,
    };
    for (index, device) in spec.devices.iter().enumerate() {
        device::validate(device, placement, &path.index(index), report);
    }
    report.unique(spec.devices.iter().map(|device| device.name.as_str()), path);
}

fn counter_set(set: &CounterSet, path: &Path<'_>, report: &mut Report) {
    names::label(&set.name, &path.member("name"), report);
    counters(&set.counters, &path.member("counters"), report);
}

pub(super) fn counters(
    counters: &std::collections::BTreeMap<String, Counter>,
    path: &Path<'_>,
    report: &mut Report,
) {
    if counters.is_empty() {
        return report.fail(path, "is missing");
    }
    if report.at_most(MAX_COUNTERS, counters.len(), path) {
        for name in counters.keys() {
            names::label(name, path, report);
        }
    }
}

fn skip_node_operations(operations: &[String], path: &Path<'_>, report: &mut Report) {
    const PREPARE: &str = "NodePrepareResources";
    const UNPREPARE: &str = "NodeUnprepareResources";
    const ALL: &str = "*";
    for (index, operation) in operations.iter().enumerate() {
        if ![PREPARE, UNPREPARE, ALL].contains(&operation.as_str()) {
            report.fail(
                &path.index(index),
                format!("{operation:?} is not one of {PREPARE}, {UNPREPARE}, {ALL}"),
            );
        }
    }
    let has = |wanted: &str| operations.iter().any(|operation| operation == wanted);
    if has(PREPARE) && !has(UNPREPARE) && !has(ALL) {
        report.fail(
            path,
            format!("{PREPARE} cannot be skip_node_operations unless {UNPREPARE} is"),
        );
    }
}
