//! The pools that a node can use: newest generation only, complete and consistent, in the order in which they are searched.
//!
//! Pools go by driver and name, those with binding conditions last; slices by name; devices as published. What a device
//! must fulfil is not judged here.

use std::collections::{BTreeMap, HashMap, HashSet};

use dra_api::{CounterSet, Device, Node, ResourceSlice};

use crate::error::Error;
use crate::in_use::DeviceId;
use crate::node::slice_reaches;

/// A device of a pool that can be allocated from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) pool: usize,
    pub(crate) slice: &'a ResourceSlice,
    pub(crate) device: &'a Device,
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
    /// Fewer slices are published than the pool is said to have.
    Incomplete {
        found: usize,
        wanted: i64,
    },
    Invalid(String),
}

#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pub(crate) driver: &'a str,
    pub(crate) name: &'a str,
    pub(crate) state: PoolState,
    /// Slices with devices for the node, by name. Empty where the pool is not usable.
    pub(crate) slices: Vec<&'a ResourceSlice>,
    /// Slices with devices for other nodes: what is allocated of them consumes this pool's counters too.
    pub(crate) elsewhere: Vec<&'a ResourceSlice>,
    pub(crate) counter_sets: BTreeMap<&'a str, &'a CounterSet>,
    /// Every slice that was found, for those who explain.
    pub(crate) found: Vec<&'a ResourceSlice>,
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

/// Every pool with a slice for the node.
pub(crate) fn gather<'a>(slices: &'a [ResourceSlice], node: &Node) -> Result<Vec<Pool<'a>>, Error> {
    let mut by_pool: HashMap<PoolKey<'a>, Vec<&'a ResourceSlice>> = HashMap::new();
    for slice in for_node(slices, node) {
        if !uses_compatibility_groups(slice) && slice_reaches(slice, node)? {
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

/// The devices of the usable pools, in the order of the search.
pub(crate) fn candidates<'a>(pools: &[Pool<'a>]) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for (pool, entry) in pools.iter().enumerate() {
        for slice in &entry.slices {
            candidates.extend(slice.spec.devices.iter().map(|device| Candidate {
                pool,
                slice,
                device,
            }));
        }
    }
    candidates
}

/// Slices of this node first, then those that name no node. The order decides only between slices of one pool that
/// disagree about the number of its slices.
fn for_node<'a>(
    slices: &'a [ResourceSlice],
    node: &Node,
) -> impl Iterator<Item = &'a ResourceSlice> {
    let name = |slice: &'a ResourceSlice| slice.spec.node_name.as_deref().unwrap_or_default();
    let wanted = node.metadata.name.clone();
    let own = slices
        .iter()
        .filter(move |slice| !name(slice).is_empty() && name(slice) == wanted);
    own.chain(slices.iter().filter(move |slice| name(slice).is_empty()))
}

fn key(slice: &ResourceSlice) -> PoolKey<'_> {
    (&slice.spec.driver, &slice.spec.pool.name)
}

/// The gate DRADeviceCompatibilityGroups is off: whoever cannot judge such groups must leave their slices alone.
fn uses_compatibility_groups(slice: &ResourceSlice) -> bool {
    slice
        .spec
        .devices
        .iter()
        .flat_map(|device| &device.consumes_counters)
        .any(|consumption| !consumption.compatibility_groups.is_empty())
}

fn add_newest<'a>(found: &mut Vec<&'a ResourceSlice>, slice: &'a ResourceSlice) {
    let generation = slice.spec.pool.generation;
    match found.first().map(|first| first.spec.pool.generation) {
        Some(known) if generation < known => {}
        Some(known) if generation > known => *found = vec![slice],
        _ => found.push(slice),
    }
}

/// The pool, or none where a newer generation is on its way that has nothing for this node.
fn assemble<'a>(
    (driver, name): PoolKey<'a>,
    found: Vec<&'a ResourceSlice>,
    slices: &'a [ResourceSlice],
) -> Option<Pool<'a>> {
    let first = &found.first()?.spec.pool;
    let (generation, wanted) = (first.generation, first.resource_slice_count);
    let complete = |count: usize| i64::try_from(count) == Ok(wanted);
    let pool = Pool {
        driver,
        name,
        state: PoolState::Usable,
        slices: Vec::new(),
        elsewhere: Vec::new(),
        counter_sets: BTreeMap::new(),
        found: found.clone(),
    };
    if complete(found.len()) {
        return Some(build(pool, found, &[]));
    }
    let everywhere = || slices.iter().filter(|slice| key(slice) == (driver, name));
    if everywhere().any(|slice| slice.spec.pool.generation > generation) {
        return None;
    }
    let all: Vec<&ResourceSlice> = everywhere()
        .filter(|slice| {
            slice.spec.pool.generation == generation && !uses_compatibility_groups(slice)
        })
        .collect();
    if !complete(all.len()) {
        return Some(Pool {
            state: PoolState::Incomplete {
                found: all.len(),
                wanted,
            },
            ..pool
        });
    }
    Some(build(pool, found, &all))
}

/// Sorts the slices by what they are for, and checks that they fit each other.
fn build<'a>(
    mut pool: Pool<'a>,
    mut here: Vec<&'a ResourceSlice>,
    all: &[&'a ResourceSlice],
) -> Pool<'a> {
    let has_counters = |slice: &&ResourceSlice| !slice.spec.shared_counters.is_empty();
    here.sort_by_key(|slice| slice.metadata.name.as_str());
    let (mut counters, slices): (Vec<_>, Vec<_>) = here.iter().partition(|s| has_counters(s));
    let mut elsewhere = Vec::new();
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
                elsewhere.push(*slice);
            }
        }
    }
    match check(&slices, &elsewhere, &counters) {
        Ok(counter_sets) => {
            pool.slices = slices;
            pool.elsewhere = elsewhere;
            pool.counter_sets = counter_sets;
        }
        Err(reason) => pool.state = PoolState::Invalid(reason),
    }
    pool
}

fn check<'a>(
    slices: &[&'a ResourceSlice],
    elsewhere: &[&'a ResourceSlice],
    counters: &[&'a ResourceSlice],
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
        .chain(elsewhere)
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
