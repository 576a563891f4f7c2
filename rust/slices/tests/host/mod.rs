//! A node for tests: devices generated from numbers, and a fake API server that applies writes.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot continue should stop"
)]

use std::collections::BTreeMap;

use dra_api::validate::validate_slice;
use dra_api::{
    Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption, Quantity, ResourceSlice,
};
use dra_slices::{
    DeviceInput, Inventory, Operation, Order, PoolInput, Write, desired_slices, diff,
};

pub(crate) const POOL: &str = "node-1/gpu";

/// Device `n`: its location is spread over NUMA nodes and switches, and some parts are unknown.
pub(crate) fn device(n: u32) -> DeviceInput {
    let address = format!("{:04x}:{:02x}:00.0", n / 256, n % 256);
    let mut device = Device {
        name: format!("gpu-{n}"),
        ..Default::default()
    };
    let uuid = DeviceAttribute {
        string: Some(format!("GPU-{n}")),
        ..Default::default()
    };
    device.attributes.insert("uuid".to_owned(), uuid);
    DeviceInput {
        order: Order {
            numa_node: (!n.is_multiple_of(7)).then_some(n % 2),
            pcie_switch: (!n.is_multiple_of(5)).then(|| format!("{:04x}:f0:00.0", n / 8)),
            pci_address: Some(address),
            rank: 0,
        },
        device,
    }
}

/// A partition of device `n` that consumes its counters.
pub(crate) fn partition(n: u32) -> DeviceInput {
    let mut input = device(n);
    input.device.name = format!("gpu-{n}-mig-0");
    input.device.consumes_counters = vec![DeviceCounterConsumption {
        counter_set: counter_set(n).name,
        counters: counter_set(n).counters,
        ..Default::default()
    }];
    input
}

pub(crate) fn counter_set(n: u32) -> CounterSet {
    let memory = Counter {
        value: Quantity::parse("80Gi").unwrap(),
    };
    CounterSet {
        name: format!("gpu-{n}"),
        counters: BTreeMap::from([("memory".to_owned(), memory)]),
    }
}

pub(crate) fn inventory(devices: Vec<DeviceInput>, published: &[ResourceSlice]) -> Inventory {
    let mut sets: Vec<CounterSet> = Vec::new();
    for consumption in devices
        .iter()
        .flat_map(|input| &input.device.consumes_counters)
    {
        let number = consumption
            .counter_set
            .strip_prefix("gpu-")
            .unwrap()
            .parse()
            .unwrap();
        sets.push(counter_set(number));
    }
    Inventory {
        driver: "dra-agent.internal".to_owned(),
        node: "node-1".to_owned(),
        pools: vec![PoolInput {
            name: POOL.to_owned(),
            devices,
            counter_sets: sets,
        }],
        published: published.to_vec(),
        ..Default::default()
    }
}

/// Publishes an inventory and returns the writes.
pub(crate) fn publish(devices: Vec<DeviceInput>, published: &mut Vec<ResourceSlice>) -> Vec<Write> {
    let desired = desired_slices(inventory(devices, published)).unwrap();
    assert_eq!(desired.problems, []);
    let writes = diff(&desired.slices, published);
    apply(&writes, published);
    writes
}

/// Applies writes as an API server does; it rejects slices that exceed a limit.
pub(crate) fn apply(writes: &[Write], published: &mut Vec<ResourceSlice>) {
    for write in writes {
        let mut slice = write.slice.clone();
        match write.op {
            Operation::Create if slice.metadata.name.is_empty() => {
                slice.metadata.name =
                    format!("{}x{:04}", slice.metadata.generate_name, published.len());
            }
            Operation::Create => {}
            Operation::Update | Operation::Delete => {
                let before = published.len();
                published.retain(|other| other.metadata.name != slice.metadata.name);
                assert_eq!(
                    published.len() + 1,
                    before,
                    "{} does not exist",
                    slice.metadata.name
                );
            }
        }
        if write.op != Operation::Delete {
            assert_eq!(validate_slice(&slice), []);
            for taint in slice
                .spec
                .devices
                .iter_mut()
                .flat_map(|device| &mut device.taints)
            {
                taint
                    .time_added
                    .get_or_insert_with(|| "2026-11-21T08:00:00Z".to_owned());
            }
            published.push(slice);
        }
    }
    published.sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
}

/// The names in each slice of devices, in the order in which the scheduler reads them.
pub(crate) fn layout(published: &[ResourceSlice]) -> Vec<Vec<String>> {
    let of_devices = published
        .iter()
        .filter(|slice| slice.spec.shared_counters.is_empty());
    of_devices
        .map(|slice| {
            slice
                .spec
                .devices
                .iter()
                .map(|device| device.name.clone())
                .collect()
        })
        .collect()
}

/// Every slice of a pool has the newest generation and the count of all.
pub(crate) fn whole(published: &[ResourceSlice]) -> bool {
    let count = i64::try_from(published.len()).unwrap();
    published.iter().all(|slice| {
        slice.spec.pool.resource_slice_count == count
            && slice.spec.pool.generation == published[0].spec.pool.generation
    })
}
