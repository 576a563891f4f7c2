//! Whether two slices have the same content, and which published times of taints are preserved.

use std::collections::HashMap;

use dra_api::{Device, DeviceTaint, ResourcePool, ResourceSliceSpec};

use crate::time::seconds;

/// The maximum difference of two times of the same taint, in seconds: the agent and the API server both round to
/// seconds.
const TIME_TOLERANCE_S: u64 = 1;

/// Whether two specs are equal except for the name, generation and slice count of their pool. The order of devices and
/// the times of taints are compared: [`preserve_times`] runs before.
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
        (Some(left), Some(right)) => left.abs_diff(right) <= TIME_TOLERANCE_S,
        _ => left == right,
    }
}

/// Sets the published `timeAdded` on each taint that is already published. Tolerations expire relative to this time,
/// and a restart of the agent must not extend them.
pub(crate) fn preserve_times(devices: &mut [Device], published: &HashMap<&str, &Device>) {
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
