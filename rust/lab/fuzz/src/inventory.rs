//! Inventories, and the slices to publish for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dra_api::ResourceSlice;
use dra_api::validate::validate_slice;
use dra_slices::{Desired, Inventory, desired_slices, diff};

use crate::Target;
use crate::api_server::{apply, distinct};
use crate::json::read;

pub const TARGET: Target = Target {
    name: "inventory",
    check,
    heap_bytes: 64 << 20,
    cpu: Duration::from_secs(5),
};

fn check(data: &[u8]) {
    let Some(mut inventory) = read::<Inventory>(data) else {
        return;
    };
    // Published slices are valid, and belong to this driver and node.
    let published = std::mem::take(&mut inventory.published);
    inventory.published = distinct(published)
        .into_iter()
        .filter(|slice| validate_slice(slice).is_empty())
        .filter(|slice| slice.spec.driver == inventory.driver)
        .filter(|slice| slice.spec.node_name.as_deref() == Some(inventory.node.as_str()))
        .collect();
    let Ok(desired) = desired_slices(inventory.clone()) else {
        return;
    };
    for slice in &desired.slices {
        let errors = validate_slice(slice);
        assert!(
            errors.is_empty(),
            "a desired slice is refused: {errors:?}: {slice:?}"
        );
    }
    for pool in &inventory.pools {
        check_devices(&pool.name, inventory.pools.len(), &inventory, &desired);
    }
    check_pools(&desired.slices);

    let mut published = inventory.published.clone();
    apply(&diff(&desired.slices, &published), &mut published);
    let again = desired_slices(Inventory {
        published: published.clone(),
        ..inventory
    })
    .expect("what was desired once");
    let writes = diff(&again.slices, &published);
    assert!(
        writes.is_empty(),
        "published slices are written again: {writes:?}"
    );
    assert_eq!(
        again.problems, desired.problems,
        "other problems the second time"
    );
}

/// Each device of a pool is published once, or reported.
fn check_devices(pool: &str, pools: usize, inventory: &Inventory, desired: &Desired) {
    let input = inventory
        .pools
        .iter()
        .find(|input| input.name == pool)
        .expect("a pool");
    let mut published = BTreeSet::new();
    let slices = desired
        .slices
        .iter()
        .filter(|slice| slice.spec.pool.name == pool);
    for device in slices.flat_map(|slice| &slice.spec.devices) {
        assert!(
            published.insert(device.name.as_str()),
            "{} is published twice",
            device.name
        );
    }
    for device in &input.devices {
        let name = device.device.name.as_str();
        let reported = desired
            .problems
            .iter()
            .any(|problem| problem.pool == pool && problem.device == name);
        assert!(
            published.contains(name) || reported,
            "device {name:?} of pool {pool:?} (of {pools}) is neither published nor reported"
        );
    }
    let known: BTreeSet<&str> = input
        .devices
        .iter()
        .map(|device| device.device.name.as_str())
        .collect();
    assert!(
        published.is_subset(&known),
        "unknown devices are published: {published:?}"
    );
}

/// Checks that every pool has one generation, and as many slices as `resourceSliceCount`.
fn check_pools(slices: &[ResourceSlice]) {
    let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in slices {
        pools.entry(&slice.spec.pool.name).or_default().push(slice);
    }
    for (name, slices) in pools {
        for slice in &slices {
            let pool = &slice.spec.pool;
            assert_eq!(
                pool.generation, slices[0].spec.pool.generation,
                "generations of pool {name}"
            );
            assert_eq!(
                usize::try_from(pool.resource_slice_count),
                Ok(slices.len()),
                "the count of slices of pool {name}"
            );
        }
    }
}
