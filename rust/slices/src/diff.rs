//! The writes that change the published slices to the desired ones.

use std::collections::{HashMap, HashSet};

use dra_api::{Device, ResourceSlice};
use serde::{Deserialize, Serialize};

use crate::preserve::same_content;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Create,
    Update,
    Delete,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Write {
    pub op: Operation,
    /// The slice to write; for a deletion, the published slice.
    pub slice: ResourceSlice,
    /// For log messages: which devices are added, removed or changed.
    pub reason: String,
}

/// Returns the writes in the order in which to apply them: deletions (removed devices must not be allocated, even if no
/// other write succeeds), then updates, then creations.
///
/// `published` must contain only slices of this driver and node: those that are not desired are deleted.
pub fn diff(desired: &[ResourceSlice], published: &[ResourceSlice]) -> Vec<Write> {
    let by_name: HashMap<&str, &ResourceSlice> = published
        .iter()
        .map(|slice| (slice.metadata.name.as_str(), slice))
        .collect();
    let desired_names: HashSet<&str> = desired
        .iter()
        .map(|slice| slice.metadata.name.as_str())
        .collect();
    let mut writes: Vec<Write> = published
        .iter()
        .filter(|slice| !desired_names.contains(slice.metadata.name.as_str()))
        .map(|slice| Write {
            op: Operation::Delete,
            slice: slice.clone(),
            reason: format!("obsolete in pool {}", slice.spec.pool.name),
        })
        .collect();
    let mut creations = Vec::new();
    for slice in desired {
        let before = by_name
            .get(slice.metadata.name.as_str())
            .filter(|_| !slice.metadata.name.is_empty());
        match before {
            None => creations.push(Write {
                op: Operation::Create,
                slice: slice.clone(),
                reason: format!("new in pool {}", slice.spec.pool.name),
            }),
            Some(before)
                if before.spec.pool == slice.spec.pool
                    && same_content(&before.spec, &slice.spec) => {}
            Some(before) => writes.push(Write {
                op: Operation::Update,
                slice: slice.clone(),
                reason: reason(before, slice),
            }),
        }
    }
    writes.extend(creations);
    writes
}

fn reason(before: &ResourceSlice, after: &ResourceSlice) -> String {
    let named = |slice: &'_ ResourceSlice| -> HashMap<String, Device> {
        let devices = slice.spec.devices.iter();
        devices
            .map(|device| (device.name.clone(), device.clone()))
            .collect()
    };
    let (old, new) = (named(before), named(after));
    let mut parts = Vec::new();
    let mut list = |verb: &str, mut names: Vec<&str>| {
        names.sort_unstable();
        match names.as_slice() {
            [] => {}
            few if few.len() <= 3 => parts.push(format!("{verb} {}", few.join(", "))),
            many => parts.push(format!("{verb} {} devices", many.len())),
        }
    };
    list(
        "adds",
        new.keys()
            .filter(|name| !old.contains_key(*name))
            .map(String::as_str)
            .collect(),
    );
    list(
        "removes",
        old.keys()
            .filter(|name| !new.contains_key(*name))
            .map(String::as_str)
            .collect(),
    );
    let differs = |name: &&String| old.get(*name).is_some_and(|device| *device != new[*name]);
    list(
        "changes",
        new.keys().filter(differs).map(String::as_str).collect(),
    );
    if before.spec.shared_counters != after.spec.shared_counters {
        parts.push("changes counters".to_owned());
    }
    let (from, to) = (&before.spec.pool, &after.spec.pool);
    if from.generation != to.generation {
        parts.push(format!(
            "generation {} to {}",
            from.generation, to.generation
        ));
    } else if from.resource_slice_count != to.resource_slice_count {
        parts.push(format!("the pool has {} slices", to.resource_slice_count));
    }
    if parts.is_empty() {
        parts.push("changes the order of devices".to_owned());
    }
    parts.join("; ")
}
