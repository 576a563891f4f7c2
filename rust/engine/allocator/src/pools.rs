//! The pools of a node: newest generation, completeness, consistency and search order.
//!
//! Pools are ordered by driver and name, those with binding conditions last; slices by name; devices as published. Requests
//! and selectors are not evaluated here.

use std::collections::{BTreeMap, HashMap, HashSet};

use dra_api::{CounterSet, Device, Node};

use crate::error::Error;
use crate::in_use::DeviceId;
use crate::node::slice_is_usable_on;
use crate::published::Published;
use crate::slices::SliceIndex;

/// A device of a usable pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) pool: usize,
    pub(crate) slice: &'a Published,
    pub(crate) device: &'a Device,
    /// The index of the device in its slice.
    pub(crate) position: usize,
}

impl<'a> Candidate<'a> {
    pub(crate) fn id(&self) -> DeviceId<'a> {
        DeviceId {
            driver: &self.slice.spec.driver,
            pool: &self.slice.spec.pool.name,
            device: &self.device.name,
        }
    }

    pub(crate) fn shared(&self) -> bool {
        self.device.allow_multiple_allocations.unwrap_or(false)
    }
}

/// Whether a pool can be allocated from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PoolState {
    Usable,
    /// Fewer slices are published than `resourceSliceCount`.
    Incomplete {
        found: usize,
        expected: i64,
    },
    Invalid(String),
    /// A device has compatibility groups, which an alpha feature of kube-scheduler compares.
    NotEvaluated,
}

impl PoolState {
    /// Why the pool is not usable, as the predicate of a sentence.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Usable => None,
            Self::Incomplete { found, expected } => Some(format!(
                "is incomplete: {found} of {expected} slices are published"
            )),
            Self::Invalid(reason) => Some(format!("is invalid: {reason}")),
            Self::NotEvaluated => Some(
                "is not evaluated: it has compatibilityGroups (DRADeviceCompatibilityGroups)"
                    .to_owned(),
            ),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pub(crate) driver: &'a str,
    pub(crate) name: &'a str,
    pub(crate) state: PoolState,
    /// Slices with devices for the node, by name. Empty if the pool is not usable.
    pub(crate) slices: Vec<&'a Published>,
    /// Slices with devices for other nodes. Their allocated devices consume counters of this pool too.
    pub(crate) other_node_slices: Vec<&'a Published>,
    pub(crate) counter_sets: BTreeMap<&'a str, &'a CounterSet>,
    /// All slices of the pool, for explanations.
    pub(crate) found: Vec<&'a Published>,
}

impl Pool<'_> {
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.driver, self.name)
    }

    fn has_binding_conditions(&self) -> bool {
        self.slices
            .iter()
            .flat_map(|slice| &slice.spec.devices)
            .any(|device| !device.binding_conditions.is_empty())
    }
}

type PoolKey<'a> = (&'a str, &'a str);

/// All pools with a slice for the node.
pub(crate) fn gather<'a>(slices: &'a SliceIndex, node: &Node) -> Result<Vec<Pool<'a>>, Error> {
    let mut by_pool: HashMap<PoolKey<'a>, Vec<&'a Published>> = HashMap::new();
    for slice in slices.for_node(&node.metadata.name) {
        if slice_is_usable_on(slice, node)? {
            add_newest(by_pool.entry(key(slice)).or_default(), slice);
        }
    }
    let mut pools: Vec<Pool<'a>> = by_pool
        .into_iter()
        .filter_map(|(key, found)| assemble(key, found, slices))
        .collect();
    pools.sort_by_key(|pool| (pool.has_binding_conditions(), pool.driver, pool.name));
    Ok(pools)
}

/// The devices of the usable pools, in search order.
pub(crate) fn candidates<'a>(pools: &[Pool<'a>]) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for (pool, entry) in pools.iter().enumerate() {
        for slice in &entry.slices {
            let devices = slice.spec.devices.iter().enumerate();
            candidates.extend(devices.map(|(position, device)| Candidate {
                pool,
                slice,
                device,
                position,
            }));
        }
    }
    candidates
}

fn key(slice: &Published) -> PoolKey<'_> {
    (&slice.spec.driver, &slice.spec.pool.name)
}

fn has_compatibility_groups(slice: &Published) -> bool {
    let mut consumptions = slice
        .spec
        .devices
        .iter()
        .flat_map(|device| &device.consumes_counters);
    consumptions.any(|consumption| !consumption.compatibility_groups.is_empty())
}

fn add_newest<'a>(found: &mut Vec<&'a Published>, slice: &'a Published) {
    let generation = slice.spec.pool.generation;
    match found.first().map(|first| first.spec.pool.generation) {
        Some(known) if generation < known => {}
        Some(known) if generation > known => *found = vec![slice],
        _ => found.push(slice),
    }
}

/// The pool, or `None` if a newer generation has no slice for this node yet.
fn assemble<'a>(
    (driver, name): PoolKey<'a>,
    found: Vec<&'a Published>,
    slices: &'a SliceIndex,
) -> Option<Pool<'a>> {
    let first = &found.first()?.spec.pool;
    let (generation, expected) = (first.generation, first.resource_slice_count);
    let complete = |count: usize| i64::try_from(count) == Ok(expected);
    let pool = Pool {
        driver,
        name,
        state: PoolState::Usable,
        slices: Vec::new(),
        other_node_slices: Vec::new(),
        counter_sets: BTreeMap::new(),
        found: found.clone(),
    };
    if complete(found.len()) {
        return Some(build(pool, found, &[]));
    }
    let everywhere = slices.of_pool(driver, name);
    if everywhere
        .iter()
        .any(|slice| slice.spec.pool.generation > generation)
    {
        return None;
    }
    let all: Vec<&Published> = everywhere
        .into_iter()
        .filter(|slice| slice.spec.pool.generation == generation)
        .collect();
    if !complete(all.len()) {
        return Some(Pool {
            state: PoolState::Incomplete {
                found: all.len(),
                expected,
            },
            ..pool
        });
    }
    Some(build(pool, found, &all))
}

/// Groups the slices by purpose, and checks their consistency.
fn build<'a>(mut pool: Pool<'a>, mut here: Vec<&'a Published>, all: &[&'a Published]) -> Pool<'a> {
    if here
        .iter()
        .chain(all)
        .any(|slice| has_compatibility_groups(slice))
    {
        pool.state = PoolState::NotEvaluated;
        return pool;
    }
    let has_counters = |slice: &&Published| !slice.spec.shared_counters.is_empty();
    here.sort_by_key(|slice| slice.metadata.name.as_str());
    let (mut counters, slices): (Vec<_>, Vec<_>) = here.iter().partition(|s| has_counters(s));
    let mut other_node_slices = Vec::new();
    if here.len() < all.len() {
        let names: HashSet<&str> = here
            .iter()
            .map(|slice| slice.metadata.name.as_str())
            .collect();
        for slice in all {
            if names.contains(slice.metadata.name.as_str()) {
                continue;
            }
            if has_counters(slice) {
                counters.push(*slice);
            } else {
                other_node_slices.push(*slice);
            }
        }
    }
    match check(&slices, &other_node_slices, &counters) {
        Ok(counter_sets) => {
            pool.slices = slices;
            pool.other_node_slices = other_node_slices;
            pool.counter_sets = counter_sets;
        }
        Err(reason) => pool.state = PoolState::Invalid(reason),
    }
    pool
}

fn check<'a>(
    slices: &[&'a Published],
    other_node_slices: &[&'a Published],
    counters: &[&'a Published],
) -> Result<BTreeMap<&'a str, &'a CounterSet>, String> {
    let mut names = HashSet::new();
    for device in slices.iter().flat_map(|slice| &slice.spec.devices) {
        if !names.insert(device.name.as_str()) {
            return Err(format!("two devices are named {}", device.name));
        }
    }
    let mut sets = BTreeMap::new();
    for set in counters
        .iter()
        .flat_map(|slice| &slice.spec.shared_counters)
    {
        if sets.insert(set.name.as_str(), set).is_some() {
            return Err(format!("two counter sets are named {}", set.name));
        }
    }
    for device in slices
        .iter()
        .chain(other_node_slices)
        .flat_map(|slice| &slice.spec.devices)
    {
        for consumption in &device.consumes_counters {
            let Some(set) = sets.get(consumption.counter_set.as_str()) else {
                return Err(format!(
                    "device {} consumes of counter set {}, which does not exist",
                    device.name, consumption.counter_set
                ));
            };
            if let Some(missing) = consumption
                .counters
                .keys()
                .find(|name| !set.counters.contains_key(*name))
            {
                return Err(format!(
                    "device {} consumes counter {missing}, which counter set {} does not have",
                    device.name, consumption.counter_set
                ));
            }
        }
    }
    Ok(sets)
}
