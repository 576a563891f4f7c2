//! Leaves out devices and counter sets that the API server would reject, so that one invalid device never blocks its
//! pool.

use std::collections::{HashMap, HashSet};

use dra_api::validate::{validate_counter_set, validate_device};
use dra_api::{CounterSet, Device};

use crate::inventory::{DeviceInput, PoolInput, Problem};

/// Returns the devices and counter sets of a pool that can be published, and reports the others in `problems`.
pub(crate) fn remove_invalid(
    pool: PoolInput,
    problems: &mut Vec<Problem>,
) -> (Vec<DeviceInput>, Vec<CounterSet>) {
    let mut report = |device: &str, field: String, message: String| {
        problems.push(Problem {
            pool: pool.name.clone(),
            device: device.to_owned(),
            field,
            message,
        });
    };
    let mut sets: HashMap<&str, &CounterSet> = HashMap::new();
    let mut valid_sets = Vec::new();
    for set in &pool.counter_sets {
        let mut errors: Vec<(String, String)> = validate_counter_set(set)
            .into_iter()
            .map(|error| {
                (
                    format!("sharedCounters[{}].{}", set.name, error.field),
                    error.message,
                )
            })
            .collect();
        if sets.contains_key(set.name.as_str()) {
            errors.push((
                format!("sharedCounters[{}]", set.name),
                "is defined twice".to_owned(),
            ));
        }
        valid_sets.push(errors.is_empty());
        if errors.is_empty() {
            sets.insert(&set.name, set);
        }
        errors
            .into_iter()
            .for_each(|(field, message)| report("", field, message));
    }
    let mut names = HashSet::new();
    let mut valid_devices = Vec::new();
    for input in &pool.devices {
        let device = &input.device;
        let mut errors: Vec<(String, String)> = validate_device(device)
            .into_iter()
            .map(|error| (error.field, error.message))
            .collect();
        errors.extend(unknown_counters(device, &sets));
        if names.contains(device.name.as_str()) {
            errors.push(("name".to_owned(), "is defined twice in the pool".to_owned()));
        }
        valid_devices.push(errors.is_empty());
        if errors.is_empty() {
            names.insert(device.name.as_str());
        }
        errors
            .into_iter()
            .for_each(|(field, message)| report(&device.name, field, message));
    }
    (
        select(pool.devices, &valid_devices),
        select(pool.counter_sets, &valid_sets),
    )
}

/// Returns the entries for which the flag at the same index is set.
fn select<T>(entries: Vec<T>, flags: &[bool]) -> Vec<T> {
    let flagged = entries.into_iter().zip(flags);
    flagged
        .filter_map(|(entry, flag)| flag.then_some(entry))
        .collect()
}

/// Returns an error for each counter that a device consumes and its pool does not have: it would invalidate the pool.
fn unknown_counters(device: &Device, sets: &HashMap<&str, &CounterSet>) -> Vec<(String, String)> {
    let mut errors = Vec::new();
    for (index, consumption) in device.consumes_counters.iter().enumerate() {
        let field = format!("consumesCounters[{index}]");
        let Some(set) = sets.get(consumption.counter_set.as_str()) else {
            let message = format!("the pool has no counter set {:?}", consumption.counter_set);
            errors.push((format!("{field}.counterSet"), message));
            continue;
        };
        for name in consumption
            .counters
            .keys()
            .filter(|name| !set.counters.contains_key(*name))
        {
            let message = format!("the counter set {:?} has no such counter", set.name);
            errors.push((format!("{field}.counters[{name}]"), message));
        }
    }
    errors
}
