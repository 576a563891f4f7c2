//! When two slices say the same, and which times of taints live on.

use std::collections::HashMap;

use dra_api::{Device, DeviceTaint, ResourceSliceSpec};

use crate::time::seconds;

/// How far apart the times of one taint may be and still be the same: both ends round to seconds.
const SLACK_SECONDS: u64 = 1;

/// Whether two specs hold the same, whatever their pool's generation and count. The order of devices counts.
pub(crate) fn same_content(left: &ResourceSliceSpec, right: &ResourceSliceSpec) -> bool {
    let rest = |spec: &ResourceSliceSpec| ResourceSliceSpec {
        pool: dra_api::ResourcePool {
            name: spec.pool.name.clone(),
            ..Default::default()
        },
        devices: Vec::new(),
        driver: spec.driver.clone(),
        node_name: spec.node_name.clone(),
        node_selector: spec.node_selector.clone(),
        all_nodes: spec.all_nodes,
        per_device_node_selection: spec.per_device_node_selection,
        shared_counters: spec.shared_counters.clone(),
        partition_type_attribute: spec.partition_type_attribute.clone(),
        skip_node_operations: spec.skip_node_operations.clone(),
    };
    left.devices.len() == right.devices.len()
        && left
            .devices
            .iter()
            .zip(&right.devices)
            .all(|(left, right)| same_device(left, right))
        && rest(left) == rest(right)
}

/// Whether two devices are the same but for the time of a taint.
pub(crate) fn same_device(left: &Device, right: &Device) -> bool {
    if left == right {
        return true;
    }
    let bare = |device: &Device| Device {
        taints: Vec::new(),
        ..device.clone()
    };
    left.taints.len() == right.taints.len()
        && left
            .taints
            .iter()
            .zip(&right.taints)
            .all(|(left, right)| same_taint(left, right) && same_time(left, right))
        && bare(left) == bare(right)
}

fn same_taint(left: &DeviceTaint, right: &DeviceTaint) -> bool {
    left.key == right.key && left.value == right.value && left.effect == right.effect
}

fn same_time(left: &DeviceTaint, right: &DeviceTaint) -> bool {
    let (Some(left), Some(right)) = (&left.time_added, &right.time_added) else {
        return true;
    };
    match (seconds(left), seconds(right)) {
        (Some(left), Some(right)) => left.abs_diff(right) <= SLACK_SECONDS,
        _ => left == right,
    }
}

/// Gives every taint that was there before the time at which it was added then, each for itself: evictions count
/// from that time, and an agent that starts again must not grant more.
pub(crate) fn carry_times(devices: &mut [Device], published: &HashMap<&str, &Device>) {
    for device in devices {
        let Some(before) = published.get(device.name.as_str()) else {
            continue;
        };
        for taint in &mut device.taints {
            let known = before
                .taints
                .iter()
                .find(|known| same_taint(known, taint) && same_time(known, taint));
            if let Some(known) = known.filter(|known| known.time_added.is_some()) {
                taint.time_added.clone_from(&known.time_added);
            }
        }
    }
}
