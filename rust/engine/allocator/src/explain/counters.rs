//! The reasons against a device because of its counters.
//!
//! The use of a pool's counters is computed once, not once for each device.

use std::collections::BTreeMap;

use dra_api::{Device, DeviceCounterConsumption};

use super::report::{Consumer, Rejection};
use crate::counters::{Counters, Shortage};
use crate::in_use::{DeviceId, InUse, Use};
use crate::pools::Pool;

/// The counters of a pool, and the allocated devices that consume them.
pub(super) struct PoolCounters<'e, 'a> {
    counters: Counters<'a>,
    /// By counter set, in the order of the pool. A set without such a device has no entry.
    allocated: BTreeMap<&'a str, Vec<Allocated<'e, 'a>>>,
}

/// The consumption of one counter set by an allocated device.
struct Allocated<'e, 'a> {
    device: &'a Device,
    consumption: &'a DeviceCounterConsumption,
    used: &'e Use,
}

impl<'e, 'a> PoolCounters<'e, 'a> {
    pub(super) fn new(pool: &Pool<'a>, in_use: &'e InUse<'a>) -> Self {
        let mut allocated: BTreeMap<&'a str, Vec<Allocated<'e, 'a>>> = BTreeMap::new();
        for slice in pool.slices.iter().chain(&pool.other_node_slices) {
            for device in &slice.spec.devices {
                let used = in_use.of(DeviceId {
                    driver: pool.driver,
                    pool: pool.name,
                    device: &device.name,
                });
                let Some(used) = used.filter(|used| used.any()) else {
                    continue;
                };
                for consumption in &device.consumes_counters {
                    allocated
                        .entry(&consumption.counter_set)
                        .or_default()
                        .push(Allocated {
                            device,
                            consumption,
                            used,
                        });
                }
            }
        }
        Self {
            counters: Counters::new(pool, in_use),
            allocated,
        }
    }

    pub(super) fn rejections(&self, device: &Device) -> Vec<Rejection> {
        let shortages = self.counters.shortages(device);
        shortages
            .iter()
            .map(|shortage| self.shortage(shortage))
            .collect()
    }

    fn shortage(&self, shortage: &Shortage) -> Rejection {
        let Shortage {
            set,
            counter,
            needed,
            free,
        } = shortage;
        let consumers = self.consumers(set, |consumption| {
            consumption.counters.contains_key(counter)
        });
        Rejection::Counter {
            message: format!(
                "counter {set}/{counter} has {free} left, {needed} are needed{}",
                held_by(&consumers)
            ),
            set: set.clone(),
            counter: counter.clone(),
            needed: needed.to_string(),
            free: free.to_string(),
            consumers,
        }
    }

    /// The allocated devices with a consumption of the set that is meant.
    fn consumers(
        &self,
        set: &str,
        is_meant: impl Fn(&DeviceCounterConsumption) -> bool,
    ) -> Vec<Consumer> {
        let mut meant: Vec<&Allocated<'_, '_>> = self
            .allocated
            .get(set)
            .into_iter()
            .flatten()
            .filter(|allocated| is_meant(allocated.consumption))
            .collect();
        // A device that consumes the set twice is one consumer.
        meant.dedup_by(|one, other| std::ptr::eq(one.device, other.device));
        meant
            .into_iter()
            .flat_map(|allocated| {
                allocated.used.holders.iter().map(|holder| Consumer {
                    device: allocated.device.name.clone(),
                    claim: holder.claim.clone(),
                })
            })
            .collect()
    }
}

/// The allocated devices with their claims: `, gpu-0 is held by claim ns/a, gpu-1 is held by claim ns/b`.
fn held_by(consumers: &[Consumer]) -> String {
    let parts = consumers.iter();
    parts
        .map(|consumer| format!(", {} is held by claim {}", consumer.device, consumer.claim))
        .collect()
}
