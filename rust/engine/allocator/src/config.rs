//! The configuration of an allocation: first that of the classes, then that of the claim, each in its order.

use std::collections::HashMap;
use std::ops::Range;

use dra_api::DeviceAllocationConfiguration;

use crate::plan::{PlannedClaim, Task};

/// The configuration of a claim. `chosen` has the allocated task of each request.
pub(crate) fn collect(
    planned: &PlannedClaim<'_>,
    chosen: &[&Task<'_>],
) -> Vec<DeviceAllocationConfiguration> {
    let mut config = of_classes(chosen);
    for entry in &planned.claim.spec.devices.config {
        let applies = entry.requests.is_empty()
            || chosen
                .iter()
                .any(|task| task.request.is_named_in(&entry.requests));
        if applies {
            config.push(DeviceAllocationConfiguration {
                source: "FromClaim".to_owned(),
                requests: entry.requests.clone(),
                opaque: entry.opaque.clone(),
            });
        }
    }
    // An empty list of requests means all of them.
    for entry in &mut config {
        if chosen
            .iter()
            .all(|task| task.request.is_named_in(&entry.requests))
        {
            entry.requests.clear();
        }
    }
    config
}

/// The configuration of the classes. Each appears once, with the names of all requests of the class.
fn of_classes(chosen: &[&Task<'_>]) -> Vec<DeviceAllocationConfiguration> {
    let mut config: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut by_class: HashMap<&str, Range<usize>> = HashMap::new();
    for task in chosen {
        let name = task.request.name();
        if let Some(range) = by_class.get(task.class.metadata.name.as_str()) {
            for entry in &mut config[range.clone()] {
                entry.requests.push(name.clone());
            }
            continue;
        }
        let start = config.len();
        config.extend(
            task.class
                .spec
                .config
                .iter()
                .map(|entry| DeviceAllocationConfiguration {
                    source: "FromClass".to_owned(),
                    requests: vec![name.clone()],
                    opaque: entry.opaque.clone(),
                }),
        );
        by_class.insert(&task.class.metadata.name, start..config.len());
    }
    config
}
