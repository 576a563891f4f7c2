//! The published slices of a pool.

use std::collections::{BTreeMap, HashMap};

use dra_api::{Device, ResourceSlice};

use crate::inventory::Inventory;
use crate::name;
use crate::shard::Published;

/// The slices of a pool that are published in its newest generation. All other slices of the pool are obsolete.
pub(crate) struct Current<'a> {
    pub(crate) generation: i64,
    pub(crate) by_index: BTreeMap<usize, &'a ResourceSlice>,
}

impl<'a> Current<'a> {
    pub(crate) fn of(inventory: &'a Inventory, pool: &str) -> Self {
        let ours = |slice: &&ResourceSlice| {
            slice.spec.driver == inventory.driver
                && slice.spec.pool.name == pool
                && slice.spec.node_name.as_deref() == Some(inventory.node.as_str())
        };
        let mut slices: Vec<&ResourceSlice> = inventory.published.iter().filter(ours).collect();
        slices.sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
        let generation = slices
            .iter()
            .map(|slice| slice.spec.pool.generation)
            .max()
            .unwrap_or(0);
        let mut by_index = BTreeMap::new();
        for slice in slices {
            if slice.spec.pool.generation == generation
                && let Some(index) = name::index(&slice.metadata)
            {
                by_index.entry(index).or_insert(slice);
            }
        }
        Self {
            generation,
            by_index,
        }
    }

    pub(crate) fn devices(&self) -> Vec<Published<'a>> {
        let names = |slice: &'a ResourceSlice| {
            slice
                .spec
                .devices
                .iter()
                .map(|device| device.name.as_str())
                .collect()
        };
        let of_devices = self
            .by_index
            .iter()
            .filter(|(_, slice)| slice.spec.shared_counters.is_empty());
        of_devices
            .map(|(index, slice)| (*index, names(slice)))
            .collect()
    }

    pub(crate) fn counters(&self) -> Vec<Published<'a>> {
        let names = |slice: &'a ResourceSlice| {
            slice
                .spec
                .shared_counters
                .iter()
                .map(|set| set.name.as_str())
                .collect()
        };
        let of_counters = self
            .by_index
            .iter()
            .filter(|(_, slice)| !slice.spec.shared_counters.is_empty());
        of_counters
            .map(|(index, slice)| (*index, names(slice)))
            .collect()
    }

    pub(crate) fn published_devices(&self) -> HashMap<&'a str, &'a Device> {
        let devices = self.by_index.values().flat_map(|slice| &slice.spec.devices);
        devices
            .map(|device| (device.name.as_str(), device))
            .collect()
    }
}
