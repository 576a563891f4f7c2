//! When two slices say the same, and which times of taints live on.

use std::collections::HashMap;

use dra_api::{Device, DeviceTaint, ResourcePool, ResourceSliceSpec};

use crate::time::seconds;

/// How far apart the times of one taint may be and still be the same: both ends round to seconds.
const SLACK_SECONDS: u64 = 1;

/// Whether two specs hold the same, whatever their pool's name, generation and count. The order of devices counts, and so
/// do the times of taints: those that are published are carried over before.
pub(crate) fn same_content(left: &ResourceSliceSpec, right: &ResourceSliceSpec) -> bool {
    let rest = |spec: &ResourceSliceSpec| ResourceSliceSpec {
        pool: ResourcePool::default(),
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
    left.devices == right.devices && rest(left) == rest(right)
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
