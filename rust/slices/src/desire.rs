//! What should be published: every pool of the node as slices, with names and generation.

use std::collections::{BTreeMap, HashSet};

use dra_api::validate::{MAX_COUNTER_SETS, MAX_DEVICES_WITH_FEATURES, validate_slice};
use dra_api::{API_VERSION, CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};

use crate::carry::{carry_times, same_content};
use crate::current::Current;
use crate::inventory::{Desired, Error, Inventory, PoolInput};
use crate::shard::{Shard, share_out};
use crate::sound::sound;
use crate::{name, order};

/// Always the limit for devices with taints and counters, so that a taint never moves a device to another slice.
pub const DEVICES_PER_SLICE: usize = MAX_DEVICES_WITH_FEATURES;

/// The slices that should be published, in the order in which the scheduler is to walk them.
///
/// A device that the API server would refuse is left out and reported. An error means that the driver's, the node's
/// or a pool's name is wrong: nothing can be published then.
///
/// It takes the inventory, whose devices move into the slices: a copy of hundreds of them is megabytes.
pub fn desire(mut inventory: Inventory) -> Result<Desired, Error> {
    let mut desired = Desired::default();
    let mut seen = HashSet::new();
    for pool in std::mem::take(&mut inventory.pools) {
        if !seen.insert(pool.name.clone()) {
            return Err(Error::DuplicatePool(pool.name));
        }
        check_names(&inventory, &pool)?;
        let slices = desire_pool(&inventory, pool, &mut desired);
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

fn desire_pool(
    inventory: &Inventory,
    pool: PoolInput,
    desired: &mut Desired,
) -> Vec<ResourceSlice> {
    let pool_name = pool.name.clone();
    let (mut devices, mut counters) = sound(pool, &mut desired.problems);
    devices.sort_by(order::compare);
    counters.sort_by(|left, right| order::natural(&left.name, &right.name));

    let published = Current::of(inventory, &pool_name);
    let names: Vec<&str> = devices
        .iter()
        .map(|input| input.device.name.as_str())
        .collect();
    let device_shards = share_out(&names, &published.devices(), DEVICES_PER_SLICE);
    let names: Vec<&str> = counters.iter().map(|set| set.name.as_str()).collect();
    let mut counter_shards = share_out(&names, &published.counters(), MAX_COUNTER_SETS);
    // Unlike a slice of devices, one of counters has nothing to come back to.
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
        carry_times(&mut members, &before);
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
    let mut give = |shard: Shard| {
        let index = shard.index.unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        (index, shard)
    };
    shards.into_iter().map(&mut give).collect()
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

/// The generation of the pool: one write that changes one slice in place leaves the pool whole, so it keeps its
/// generation. Anything more begins a new one, in which every slice is rewritten.
fn generation(slices: &[ResourceSlice], published: &Current<'_>, target: &ResourcePool) -> i64 {
    let mut changed = 0;
    for slice in slices {
        match name::index(&slice.metadata).and_then(|index| published.by_index.get(&index)) {
            None => return following(published.generation),
            Some(before)
                if before.spec.pool == *target && same_content(&before.spec, &slice.spec) => {}
            Some(_) => changed += 1,
        }
    }
    if changed > 1 {
        following(published.generation)
    } else {
        published.generation
    }
}

/// The generation after this one. After the last one comes 1: once every slice is rewritten, none has the last one.
fn following(generation: i64) -> i64 {
    generation.checked_add(1).unwrap_or(1)
}
