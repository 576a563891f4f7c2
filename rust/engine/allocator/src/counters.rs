//! Shared counters: the remaining amounts, and the consumption of this allocation.

use std::collections::BTreeMap;

use dra_api::{Device, Quantity, ResourceSlice};

use crate::in_use::{DeviceId, InUse};
use crate::pools::Pool;

/// A counter: its set and its name.
type Key<'a> = (&'a str, &'a str);

/// One counter of a pool.
#[derive(Debug)]
struct Counter {
    /// The remaining amount after existing allocations. Negative if these exceed the counter.
    available: Quantity,
    /// The consumption of this allocation so far.
    consumed: Quantity,
}

/// A counter that does not suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) set: String,
    pub(crate) counter: String,
    pub(crate) needed: Quantity,
    pub(crate) free: Quantity,
}

/// The counters of one pool.
#[derive(Debug, Default)]
pub(crate) struct Counters<'a> {
    counters: BTreeMap<Key<'a>, Counter>,
}

impl<'a> Counters<'a> {
    /// The counters of a pool. All allocated devices of the pool consume them, including devices of other nodes.
    pub(crate) fn new(pool: &Pool<'a>, in_use: &InUse<'a>) -> Self {
        let mut counters = BTreeMap::new();
        for (set, content) in &pool.counter_sets {
            for (name, counter) in &content.counters {
                let entry = Counter {
                    available: counter.value.clone(),
                    consumed: Quantity::default(),
                };
                counters.insert((*set, name.as_str()), entry);
            }
        }
        let mut pool_counters = Self { counters };
        for slice in pool.slices.iter().chain(&pool.other_node_slices) {
            for device in &slice.spec.devices {
                if in_use
                    .of(id_of(slice, device))
                    .is_some_and(|used| used.any())
                {
                    pool_counters.each(device, |counter, value| counter.available.sub(value));
                }
            }
        }
        pool_counters
    }

    /// Consumes the counters of the device. Returns false without change if any counter of the pool does not suffice.
    pub(crate) fn consume(&mut self, device: &'a Device) -> bool {
        self.each(device, |counter, value| counter.consumed.add(value));
        let enough = self
            .counters
            .values()
            .all(|counter| counter.available >= counter.consumed);
        if !enough {
            self.release(device);
        }
        enough
    }

    pub(crate) fn release(&mut self, device: &'a Device) {
        self.each(device, |counter, value| counter.consumed.sub(value));
    }

    /// The remaining amount of each counter, with its name.
    pub(crate) fn free(&self) -> impl Iterator<Item = (&'a str, Quantity)> {
        self.counters.iter().map(|((_, name), counter)| {
            let mut free = counter.available.clone();
            free.sub(&counter.consumed);
            (*name, free)
        })
    }

    /// The counters that do not suffice for the device. An overdrawn counter affects every device of the pool that consumes
    /// any counter.
    pub(crate) fn shortages(&self, device: &Device) -> Vec<Shortage> {
        let mut shortages = Vec::new();
        for ((set, name), counter) in &self.counters {
            let mut needed = Quantity::default();
            for consumption in &device.consumes_counters {
                if consumption.counter_set == *set
                    && let Some(value) = consumption.counters.get(*name)
                {
                    needed.add(&value.value);
                }
            }
            let mut free = counter.available.clone();
            free.sub(&counter.consumed);
            if free < needed {
                shortages.push(Shortage {
                    set: (*set).to_owned(),
                    counter: (*name).to_owned(),
                    needed,
                    free,
                });
            }
        }
        shortages
    }

    fn each(&mut self, device: &'a Device, mut change: impl FnMut(&mut Counter, &Quantity)) {
        for consumption in &device.consumes_counters {
            for (name, counter) in &consumption.counters {
                let key = (consumption.counter_set.as_str(), name.as_str());
                if let Some(entry) = self.counters.get_mut(&key) {
                    change(entry, &counter.value);
                }
            }
        }
    }
}

fn id_of<'a>(slice: &'a ResourceSlice, device: &'a Device) -> DeviceId<'a> {
    DeviceId {
        driver: &slice.spec.driver,
        pool: &slice.spec.pool.name,
        device: &device.name,
    }
}
