//! The desired slices: every pool of the node, with names and generation.

use std::collections::{BTreeMap, HashSet};

use dra_api::validate::{MAX_COUNTER_SETS, MAX_DEVICES_WITH_FEATURES, validate_slice};
use dra_api::{API_VERSION, CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};

use crate::current::Current;
use crate::inventory::{Desired, Error, Inventory, PoolInput};
use crate::preserve::{preserve_times, same_content};
use crate::shard::{Shard, distribute};
use crate::validity::remove_invalid;
use crate::{name, order};

/// The maximum number of devices in a slice. It is the limit for devices with taints and counters, so that a new taint
/// never moves a device to another slice.
pub const DEVICES_PER_SLICE: usize = MAX_DEVICES_WITH_FEATURES;

/// Returns the slices to publish, in the order in which the scheduler should read them.
///
/// A device that the API server would reject is left out and reported in [`Desired::problems`]. The inventory is
/// consumed, because copies of hundreds of devices take megabytes.
///
/// # Errors
/// The name of the driver, of the node or of a pool is invalid, or a pool is defined twice. Nothing can be published.
pub fn desired_slices(mut inventory: Inventory) -> Result<Desired, Error> {
    take_desired_slices(&mut inventory)
}

/// Like [`desired_slices`], but consumes only the pools of the inventory, so that the published slices remain.
///
/// # Errors
/// As for [`desired_slices`].
pub fn take_desired_slices(inventory: &mut Inventory) -> Result<Desired, Error> {
    let mut desired = Desired::default();
    let mut seen = HashSet::new();
    for pool in std::mem::take(&mut inventory.pools) {
        if !seen.insert(pool.name.clone()) {
            return Err(Error::DuplicatePool(pool.name));
        }
        check_names(inventory, &pool)?;
        let slices = desired_pool(inventory, pool, &mut desired);
        desired.slices.extend(slices);
    }
    Ok(desired)
}

fn check_names(inventory: &Inventory, pool: &PoolInput) -> Result<(), Error> {
    let generation = ResourcePool {
        name: pool.name.clone(),
        generation: 0,
        resource_slice_count: 1,
    };
    let probe = slice(
        0,
        Content::Devices(Vec::new()),
        inventory,
        &generation,
        None,
    );
    match validate_slice(&probe)
        .into_iter()
        .find(|error| !error.field.starts_with("metadata.name"))
    {
        Some(error) => Err(Error::Invalid {
            field: error.field,
            message: error.message,
        }),
        None => Ok(()),
    }
}

enum Content {
    Devices(Vec<Device>),
    Counters(Vec<CounterSet>),
}

fn desired_pool(
    inventory: &Inventory,
    pool: PoolInput,
    desired: &mut Desired,
) -> Vec<ResourceSlice> {
    let pool_name = pool.name.clone();
    let (devices, mut counters) = remove_invalid(pool, &mut desired.problems);
    let mut devices = order::sort(devices);
    counters.sort_by(|left, right| order::natural(&left.name, &right.name));

    let published = Current::of(inventory, &pool_name);
    let names: Vec<&str> = devices
        .iter()
        .map(|input| input.device.name.as_str())
        .collect();
    let device_shards = distribute(&names, &published.devices(), DEVICES_PER_SLICE);
    let names: Vec<&str> = counters.iter().map(|set| set.name.as_str()).collect();
    let mut counter_shards = distribute(&names, &published.counters(), MAX_COUNTER_SETS);
    // An empty slice of devices is kept for devices that return. Counter sets need no such slice.
    counter_shards.retain(|shard| !shard.members.is_empty());

    let mut next = published.by_index.keys().max().map_or(0, |last| last + 1);
    let mut contents: BTreeMap<usize, Content> = BTreeMap::new();
    let before = published.published_devices();
    for (at, shard) in indexed(device_shards, &mut next) {
        let mut members: Vec<Device> = shard
            .members
            .iter()
            .map(|rank| std::mem::take(&mut devices[*rank].device))
            .collect();
        preserve_times(&mut members, &before);
        contents.insert(at, Content::Devices(members));
    }
    for (at, shard) in indexed(counter_shards, &mut next) {
        let members = shard
            .members
            .iter()
            .map(|rank| std::mem::take(&mut counters[*rank]))
            .collect();
        contents.insert(at, Content::Counters(members));
    }
    let count = i64::try_from(contents.len()).unwrap_or(i64::MAX);
    let mut target = ResourcePool {
        name: pool_name,
        generation: published.generation,
        resource_slice_count: count,
    };
    let mut slices: Vec<ResourceSlice> = contents
        .into_iter()
        .map(|(at, content)| {
            slice(
                at,
                content,
                inventory,
                &target,
                published.by_index.get(&at).copied(),
            )
        })
        .collect();
    target.generation = generation(&slices, &published, &target);
    for slice in &mut slices {
        slice.spec.pool = target.clone();
    }
    slices
}

fn indexed(shards: Vec<Shard>, next: &mut usize) -> Vec<(usize, Shard)> {
    let mut assign = |shard: Shard| {
        let index = shard.index.unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        (index, shard)
    };
    shards.into_iter().map(&mut assign).collect()
}

fn slice(
    index: usize,
    content: Content,
    inventory: &Inventory,
    pool: &ResourcePool,
    published: Option<&ResourceSlice>,
) -> ResourceSlice {
    let (devices, shared_counters) = match content {
        Content::Devices(devices) => (devices, Vec::new()),
        Content::Counters(sets) => (Vec::new(), sets),
    };
    ResourceSlice {
        api_version: API_VERSION.to_owned(),
        kind: "ResourceSlice".to_owned(),
        metadata: match published {
            Some(published) => published.metadata.clone(),
            None => name::metadata(index, &pool.name, inventory),
        },
        spec: ResourceSliceSpec {
            driver: inventory.driver.clone(),
            pool: pool.clone(),
            node_name: Some(inventory.node.clone()),
            devices,
            shared_counters,
            ..Default::default()
        },
    }
}

/// Returns the generation of the pool. One update of one slice keeps the pool complete, so it keeps the generation. Any
/// larger change starts a new generation, in which every slice is rewritten.
fn generation(slices: &[ResourceSlice], published: &Current<'_>, target: &ResourcePool) -> i64 {
    let mut changed = 0;
    for slice in slices {
        match name::index(&slice.metadata).and_then(|index| published.by_index.get(&index)) {
            None => return next_generation(published.generation),
            Some(before)
                if before.spec.pool == *target && same_content(&before.spec, &slice.spec) => {}
            Some(_) => changed += 1,
        }
    }
    if changed > 1 {
        next_generation(published.generation)
    } else {
        published.generation
    }
}

/// Returns the next generation. The maximum is followed by 1: after all slices are rewritten, no slice has the maximum.
fn next_generation(generation: i64) -> i64 {
    generation.checked_add(1).unwrap_or(1)
}
