//! Single cases: the pools that people have, and what goes wrong with them.

mod host;

use dra_api::{DeviceAttribute, DeviceTaint, ResourceSlice};
use dra_slices::{DeviceInput, Error, Naming, Operation, Order, desire, diff};
use host::{apply, counter_set, device, inventory, layout, partition, publish};

fn numbered(range: std::ops::Range<u32>) -> Vec<DeviceInput> {
    range.map(device).collect()
}

fn taint(time_added: Option<&str>) -> DeviceTaint {
    DeviceTaint {
        key: "dra-agent.internal/unhealthy".into(),
        value: "xid-79".into(),
        effect: "NoSchedule".into(),
        time_added: time_added.map(str::to_owned),
    }
}

#[test]
fn two_hundred_and_eight_devices_take_four_slices_with_room() {
    let mut slices = Vec::new();
    publish(numbered(0..208), &mut slices);
    assert_eq!(
        layout(&slices).iter().map(Vec::len).collect::<Vec<_>>(),
        [52, 52, 52, 52]
    );
    let writes = publish(numbered(0..207), &mut slices);
    assert_eq!(writes.len(), 1);
    assert_eq!(
        (writes[0].op, writes[0].reason.as_str()),
        (Operation::Update, "removes gpu-207")
    );
    assert_eq!(writes[0].slice.spec.pool.generation, 1);
    assert_eq!(publish(numbered(0..208), &mut slices).len(), 1);
}

#[test]
fn a_device_more_than_all_slices_hold_takes_a_slice_and_a_generation() {
    let mut slices = Vec::new();
    publish(numbered(0..64), &mut slices);
    let writes = publish(numbered(0..65), &mut slices);
    assert_eq!(
        writes.iter().map(|write| write.op).collect::<Vec<_>>(),
        [Operation::Update, Operation::Create]
    );
    assert_eq!(writes[0].reason, "generation 1 to 2");
    assert_eq!(
        layout(&slices).iter().map(Vec::len).collect::<Vec<_>>(),
        [64, 1]
    );
}

#[test]
fn losing_every_device_removes_the_pool() {
    let mut slices = Vec::new();
    publish(numbered(0..70), &mut slices);
    let writes = publish(Vec::new(), &mut slices);
    assert!(writes.iter().all(|write| write.op == Operation::Delete));
    assert_eq!(slices, []);
}

#[test]
fn a_pool_that_is_gone_is_deleted_and_another_left_alone() {
    let mut two = inventory(numbered(0..2), &[]);
    two.pools.push(dra_slices::PoolInput {
        name: "node-1/nic".into(),
        devices: numbered(2..3),
        ..Default::default()
    });
    let mut slices = Vec::new();
    apply(
        &diff(&desire(two.clone()).unwrap().slices, &slices),
        &mut slices,
    );
    assert_eq!(slices.len(), 2);
    let writes = publish(numbered(0..2), &mut slices);
    assert_eq!(writes.len(), 1);
    assert_eq!(
        (writes[0].op, writes[0].slice.spec.pool.name.as_str()),
        (Operation::Delete, "node-1/nic")
    );
}

#[test]
fn counters_have_slices_of_their_own_with_eight_sets_each() {
    let mut slices = Vec::new();
    let inputs: Vec<DeviceInput> = (0..20).flat_map(|n| [device(n), partition(n)]).collect();
    publish(inputs, &mut slices);
    let sets: Vec<usize> = slices
        .iter()
        .map(|slice| slice.spec.shared_counters.len())
        .collect();
    assert_eq!(sets, [0, 6, 7, 7]);
    assert!(
        slices
            .iter()
            .all(|slice| slice.spec.pool.resource_slice_count == 4)
    );
    let names = &layout(&slices)[0];
    for (at, name) in names
        .iter()
        .enumerate()
        .filter(|(_, name)| name.ends_with("-mig-0"))
    {
        assert_eq!(
            format!("{}-mig-0", names[at - 1]),
            *name,
            "a partition follows its parent"
        );
    }
}

#[test]
fn addresses_are_ordered_as_numbers_and_the_unknown_is_last() {
    let place = |numa: Option<u32>, switch: Option<&str>, address: &str, name: &str| {
        let mut input = device(1);
        input.order = Order {
            numa_node: numa,
            pcie_switch: switch.map(str::to_owned),
            pci_address: Some(address.to_owned()),
            rank: 0,
        };
        input.device.name = name.to_owned();
        input
    };
    let mut slices = Vec::new();
    let inputs = vec![
        place(None, Some("0000:01:00.0"), "0000:02:00.0", "f"),
        place(Some(10), None, "0000:02:00.0", "e"),
        place(Some(2), None, "10000:01:00.0", "d"),
        place(Some(2), None, "0000:ff:00.0", "c"),
        place(Some(2), Some("0000:a0:00.0"), "0000:a1:00.0", "b-10"),
        place(Some(2), Some("0000:a0:00.0"), "0000:a1:00.0", "b-9"),
        place(Some(2), Some("0000:a0:00.0"), "0000:a1:00.0", "b"),
        place(Some(2), Some("0000:30:00.0"), "0000:f1:00.0", "a"),
    ];
    publish(inputs, &mut slices);
    assert_eq!(
        layout(&slices)[0],
        ["a", "b", "b-9", "b-10", "c", "d", "e", "f"]
    );
}

#[test]
fn rank_orders_the_devices_of_one_address_and_no_others() {
    let ranked = |address: &str, name: &str, rank: u32| {
        let mut input = device(1);
        input.order = Order {
            pci_address: Some(address.to_owned()),
            rank,
            ..Default::default()
        };
        input.device.name = name.to_owned();
        input
    };
    let mut slices = Vec::new();
    let inputs = vec![
        ranked("0000:01:00.0", "whole", 9),
        ranked("0000:01:00.0", "at-0", 2),
        ranked("0000:01:00.0", "at-6", 1),
        ranked("0000:02:00.0", "next-whole", 9),
        ranked("0000:02:00.0", "next-6", 1),
    ];
    publish(inputs, &mut slices);
    assert_eq!(
        layout(&slices)[0],
        ["at-6", "at-0", "whole", "next-6", "next-whole"]
    );
}

#[test]
fn a_device_that_the_api_would_refuse_is_left_out_and_named() {
    let mut inputs = numbered(0..4);
    let long = DeviceAttribute {
        string: Some("x".repeat(65)),
        ..Default::default()
    };
    inputs[1]
        .device
        .attributes
        .insert("productName".into(), long);
    inputs[2].device.name = "gpu-0".into();
    let mut orphan = partition(3);
    orphan.device.name = "gpu-3-mig".into();
    inputs.push(orphan);
    let mut source = inventory(inputs, &[]);
    source.pools[0].counter_sets = vec![counter_set(9)];
    let desired = desire(source.clone()).unwrap();
    let problems: Vec<String> = desired
        .problems
        .iter()
        .map(|problem| {
            format!(
                "{} {} {}: {}",
                problem.pool, problem.device, problem.field, problem.message
            )
        })
        .collect();
    assert_eq!(
        problems,
        [
            "node-1/gpu gpu-1 attributes[productName].string: has 65 bytes, the limit is 64",
            "node-1/gpu gpu-0 name: is there twice in the pool",
            "node-1/gpu gpu-3-mig consumesCounters[0].counterSet: the pool has no counter set \"gpu-3\"",
        ]
    );
    let mut published = Vec::new();
    apply(&diff(&desired.slices, &[]), &mut published);
    assert_eq!(layout(&published).concat(), ["gpu-3", "gpu-0"]);
}

#[test]
fn a_taint_keeps_the_time_at_which_it_was_added() {
    let mut slices = Vec::new();
    let mut inputs = numbered(0..2);
    inputs[0].device.taints = vec![taint(None)];
    publish(inputs.clone(), &mut slices);
    assert_eq!(
        publish(inputs.clone(), &mut slices),
        [],
        "the server's default is no change"
    );

    inputs[0].device.taints = vec![taint(Some("2026-11-21T08:00:00.9Z"))];
    assert_eq!(
        publish(inputs.clone(), &mut slices),
        [],
        "a second apart is the same"
    );

    let other = DeviceTaint {
        key: "dra-agent.internal/other".into(),
        ..taint(None)
    };
    inputs[0].device.taints = vec![other, taint(None)];
    let writes = publish(inputs, &mut slices);
    assert_eq!(writes.len(), 1);
    let device = writes[0]
        .slice
        .spec
        .devices
        .iter()
        .find(|device| device.name == "gpu-0")
        .unwrap();
    assert_eq!(device.taints[0].time_added, None);
    assert_eq!(
        device.taints[1].time_added.as_deref(),
        Some("2026-11-21T08:00:00Z")
    );
}

#[test]
fn slices_of_an_older_generation_or_of_another_scheme_are_removed() {
    let mut slices = Vec::new();
    publish(numbered(0..3), &mut slices);
    let mut old = slices[0].clone();
    old.metadata.name = "00001-dra-agent.internal-node-1-aaaaa".into();
    old.spec.pool.generation = 0;
    let mut foreign = slices[0].clone();
    foreign.metadata.name = "node-1-dra-agent.internal-x2vqm".into();
    slices.extend([old, foreign]);
    let writes = publish(numbered(0..3), &mut slices);
    assert_eq!(
        writes.iter().map(|write| write.op).collect::<Vec<_>>(),
        [Operation::Delete, Operation::Delete]
    );
    assert_eq!(slices.len(), 1);
}

#[test]
fn a_predecessor_s_slices_are_adopted_unchanged() {
    let mut slices = Vec::new();
    publish(numbered(0..3), &mut slices);
    slices[0].metadata.name = "00000-dra-agent.internal-node-1-x2vqm".into();
    slices[0].spec.pool.generation = 7;
    assert_eq!(publish(numbered(0..3), &mut slices), []);
}

#[test]
fn names_sort_as_the_scheduler_is_to_walk_them() {
    let mut source = inventory(numbered(0..65), &[]);
    let names = |slices: &[ResourceSlice]| -> Vec<String> {
        slices
            .iter()
            .map(|slice| format!("{}{}", slice.metadata.name, slice.metadata.generate_name))
            .collect()
    };
    assert_eq!(
        names(&desire(source.clone()).unwrap().slices),
        [
            "00000-dra-agent.internal-node-1-",
            "00001-dra-agent.internal-node-1-"
        ]
    );
    source.naming = Naming::Fixed;
    assert_eq!(
        names(&desire(source.clone()).unwrap().slices),
        [
            "00000-dra-agent.internal-node-1-gpu",
            "00001-dra-agent.internal-node-1-gpu"
        ]
    );
}

#[test]
fn a_wrong_name_is_an_error_of_the_whole() {
    let mut source = inventory(numbered(0..1), &[]);
    source.node = "Node_1".into();
    assert!(
        matches!(desire(source.clone()), Err(Error::Invalid { field, .. }) if field == "spec.nodeName")
    );
    let mut source = inventory(numbered(0..1), &[]);
    source.pools.push(source.pools[0].clone());
    assert!(matches!(
        desire(source.clone()),
        Err(Error::DuplicatePool(_))
    ));
}
