//! Single cases: common pools, and invalid or unusual ones.

mod host;

use dra_api::{DeviceAttribute, DeviceTaint, ResourceSlice};
use dra_slices::{DeviceInput, Error, Naming, Operation, Order, desired_slices, diff};
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
fn a_removed_pool_is_deleted_and_another_left_alone() {
    let mut two = inventory(numbered(0..2), &[]);
    two.pools.push(dra_slices::PoolInput {
        name: "node-1/nic".into(),
        devices: numbered(2..3),
        ..Default::default()
    });
    let mut slices = Vec::new();
    apply(
        &diff(&desired_slices(two.clone()).unwrap().slices, &slices),
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
fn counters_have_separate_slices_with_eight_sets_each() {
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
    inputs[1].device.attributes.insert("productName", long);
    inputs[2].device.name = "gpu-0".into();
    let mut orphan = partition(3);
    orphan.device.name = "gpu-3-mig".into();
    inputs.push(orphan);
    let mut source = inventory(inputs, &[]);
    source.pools[0].counter_sets = vec![counter_set(9)];
    let desired = desired_slices(source.clone()).unwrap();
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
            "node-1/gpu gpu-0 name: is defined twice in the pool",
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
        "the server's default is not a change"
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
        names(&desired_slices(source.clone()).unwrap().slices),
        [
            "00000-dra-agent.internal-node-1-",
            "00001-dra-agent.internal-node-1-"
        ]
    );
    source.naming = Naming::Fixed;
    assert_eq!(
        names(&desired_slices(source.clone()).unwrap().slices),
        [
            "00000-dra-agent.internal-node-1-gpu",
            "00001-dra-agent.internal-node-1-gpu"
        ]
    );
}

#[test]
fn fixed_names_have_every_part_of_the_pool_after_the_node() {
    let mut source = inventory(numbered(0..1), &[]);
    source.naming = Naming::Fixed;
    source.pools[0].name = "node-1/l40s/gpu".into();
    let slices = desired_slices(source).unwrap().slices;
    assert_eq!(
        slices[0].metadata.name,
        "00000-dra-agent.internal-node-1-l40s-gpu"
    );
}

#[test]
fn a_wrong_name_is_an_error_of_the_whole() {
    let mut source = inventory(numbered(0..1), &[]);
    source.node = "Node_1".into();
    assert!(
        matches!(desired_slices(source.clone()), Err(Error::Invalid { field, .. }) if field == "spec.nodeName")
    );
    let mut source = inventory(numbered(0..1), &[]);
    source.pools.push(source.pools[0].clone());
    assert!(matches!(
        desired_slices(source.clone()),
        Err(Error::DuplicatePool(_))
    ));
}

// === Reasons ===

fn reason(before: Vec<DeviceInput>, after: Vec<DeviceInput>) -> Vec<String> {
    let mut slices = Vec::new();
    publish(before, &mut slices);
    publish(after, &mut slices)
        .into_iter()
        .map(|write| write.reason)
        .collect()
}

fn tainted(range: std::ops::Range<u32>) -> Vec<DeviceInput> {
    let mut inputs = numbered(range);
    for input in &mut inputs {
        input.device.taints = vec![taint(None)];
    }
    inputs
}

#[test]
fn a_write_names_up_to_three_devices_and_counts_more() {
    assert_eq!(
        reason(numbered(0..2), numbered(0..5)),
        ["adds gpu-2, gpu-3, gpu-4"]
    );
    assert_eq!(reason(numbered(0..2), numbered(0..6)), ["adds 4 devices"]);
    assert_eq!(
        reason(numbered(0..4), numbered(3..5)),
        ["adds gpu-4; removes gpu-0, gpu-1, gpu-2"]
    );
    assert_eq!(
        reason(numbered(0..2), tainted(0..1)),
        ["removes gpu-1; changes gpu-0"]
    );
    assert_eq!(reason(numbered(0..9), tainted(0..9)), ["changes 9 devices"]);
}

#[test]
fn a_write_names_what_changes_besides_devices() {
    let moved = |address: &str| {
        let mut inputs = vec![device(1), device(3)];
        inputs[0].order.pci_address = Some(address.to_owned());
        inputs[0].order.numa_node = inputs[1].order.numa_node;
        inputs[0].order.pcie_switch = None;
        inputs[1].order.pcie_switch = None;
        inputs
    };
    assert_eq!(
        reason(moved("0000:00:00.0"), moved("ffff:00:00.0")),
        ["changes the order of devices"]
    );
    assert_eq!(
        reason(vec![device(1), partition(1)], vec![device(1)]),
        [
            "obsolete in pool node-1/gpu",
            "removes gpu-1-mig-0; the pool has 1 slices"
        ]
    );
    assert_eq!(
        reason(Vec::new(), vec![device(1)]),
        ["new in pool node-1/gpu"]
    );
}

#[test]
fn counters_that_change_are_written() {
    let mut source = inventory(vec![partition(1), partition(2)], &[]);
    let mut slices = Vec::new();
    apply(
        &diff(&desired_slices(source.clone()).unwrap().slices, &[]),
        &mut slices,
    );
    let counter = source.pools[0].counter_sets[0].counters.get_mut("memory");
    counter.unwrap().value = dra_api::Quantity::parse("96Gi").unwrap();
    source.published.clone_from(&slices);
    let writes = diff(&desired_slices(source).unwrap().slices, &slices);
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].reason, "changes counters");
}

// === Valid inventories ===

#[test]
fn a_counter_set_that_is_defined_twice_is_left_out_once_and_a_missing_counter_named() {
    let mut source = inventory(vec![partition(1), partition(2)], &[]);
    let twice = source.pools[0].counter_sets[0].clone();
    source.pools[0].counter_sets.push(twice);
    let counters = &mut source.pools[0].devices[1].device.consumes_counters[0].counters;
    let memory = counters["memory"].clone();
    counters.insert("slices".to_owned(), memory);
    let desired = desired_slices(source).unwrap();
    let problems: Vec<String> = desired
        .problems
        .iter()
        .map(|problem| format!("{} {}: {}", problem.device, problem.field, problem.message))
        .collect();
    assert_eq!(
        problems,
        [
            " sharedCounters[gpu-1]: is defined twice",
            "gpu-2-mig-0 consumesCounters[0].counters[slices]: the counter set \"gpu-2\" has no such counter",
        ]
    );
    assert_eq!(layout(&desired.slices).concat(), ["gpu-1-mig-0"]);
    let sets: usize = desired
        .slices
        .iter()
        .map(|slice| slice.spec.shared_counters.len())
        .sum();
    assert_eq!(sets, 2);
}

// === What is published ===

#[test]
fn slices_of_another_driver_node_or_pool_decide_nothing() {
    let mut own = Vec::new();
    publish(numbered(0..2), &mut own);
    let foreign = |change: fn(&mut ResourceSlice)| {
        let mut slice = own[0].clone();
        slice.metadata.name = "00007-other".into();
        slice.spec.pool.generation = 9;
        change(&mut slice);
        slice
    };
    let published = [
        foreign(|slice| slice.spec.driver = "other.example.com".into()),
        foreign(|slice| slice.spec.node_name = Some("node-2".into())),
        foreign(|slice| slice.spec.node_name = None),
        foreign(|slice| slice.spec.pool.name = "node-1/nic".into()),
    ];
    let desired = desired_slices(inventory(numbered(0..2), &published)).unwrap();
    assert_eq!(desired.slices.len(), 1);
    assert_eq!(desired.slices[0].spec.pool.generation, 1);
    assert_eq!(
        desired.slices[0].metadata.generate_name,
        "00000-dra-agent.internal-node-1-"
    );
}

#[test]
fn a_name_that_starts_almost_like_one_of_ours_is_not_continued() {
    for name in [
        "0000g-dra-agent.internal-node-1-x",
        "0000A-dra-agent.internal-node-1-x",
        "000000-dra-agent.internal-node-1-x",
        "00000",
    ] {
        let mut slices = Vec::new();
        publish(numbered(0..2), &mut slices);
        slices[0].metadata.name = name.into();
        let writes = publish(numbered(0..2), &mut slices);
        let operations: Vec<Operation> = writes.iter().map(|write| write.op).collect();
        assert_eq!(operations, [Operation::Delete, Operation::Create], "{name}");
        assert_eq!(writes[1].slice.spec.pool.generation, 2, "{name}");
    }
}

#[test]
fn slices_are_numbered_in_hexadecimal_and_continued_by_number() {
    let mut slices = Vec::new();
    publish(numbered(0..700), &mut slices);
    assert_eq!(slices.len(), 11);
    assert!(slices[10].metadata.name.starts_with("0000a-"));
    assert_eq!(publish(numbered(0..700), &mut slices), []);
    let writes = publish(numbered(0..704), &mut slices);
    assert!(writes.iter().all(|write| write.op == Operation::Update));
}

#[test]
fn fixed_names_leave_out_the_pool_where_it_is_the_node_and_name_the_owner() {
    let mut source = inventory(numbered(0..1), &[]);
    source.naming = Naming::Fixed;
    source.pools[0].name = "node-1".into();
    source.owner = Some(dra_api::OwnerReference {
        kind: "Node".into(),
        name: "node-1".into(),
        ..Default::default()
    });
    let slices = desired_slices(source).unwrap().slices;
    assert_eq!(slices[0].metadata.name, "00000-dra-agent.internal-node-1");
    assert_eq!(slices[0].metadata.owner_references[0].name, "node-1");
    assert_eq!(slices[0].kind, "ResourceSlice");
    assert_eq!(slices[0].api_version, "resource.k8s.io/v1");
}

// === Taints ===

#[test]
fn each_taint_keeps_its_own_time_and_another_taint_has_none() {
    let named = |key: &str, value: &str, effect: &str, time: Option<&str>| DeviceTaint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
        time_added: time.map(str::to_owned),
    };
    let (early, late) = ("2026-11-21T07:00:00Z", "2026-11-21T09:00:00Z");
    let mut inputs = numbered(0..1);
    inputs[0].device.taints = vec![
        named("d/a", "1", "NoSchedule", Some(early)),
        named("d/b", "1", "NoSchedule", Some(late)),
        named("d/unread", "1", "NoSchedule", Some("soon")),
    ];
    let mut slices = Vec::new();
    publish(inputs.clone(), &mut slices);
    let times = |taints: Vec<DeviceTaint>| -> Vec<Option<String>> {
        let mut inputs = inputs.clone();
        inputs[0].device.taints = taints;
        let desired = desired_slices(inventory(inputs, &slices)).unwrap();
        let taints = &desired.slices[0].spec.devices[0].taints;
        taints
            .iter()
            .map(|taint| taint.time_added.clone())
            .collect()
    };
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(
        times(vec![
            named("d/b", "1", "NoSchedule", None),
            named("d/a", "1", "NoSchedule", None)
        ]),
        [is(late), is(early)]
    );
    for other in [
        named("d/c", "1", "NoSchedule", None),
        named("d/a", "2", "NoSchedule", None),
        named("d/a", "1", "NoExecute", None),
    ] {
        assert_eq!(times(vec![other.clone()]), [None], "{other:?}");
    }
    assert_eq!(
        times(vec![named("d/unread", "1", "NoSchedule", Some("now"))]),
        [is("now")],
        "invalid times are compared as text"
    );
    let later = "2026-11-21T07:00:02Z";
    assert_eq!(
        times(vec![named("d/a", "1", "NoSchedule", Some(later))]),
        [is(later)],
        "two seconds later it is another occurrence"
    );
}

// === Where a device goes ===

/// Devices that differ in their address only, so that their number is their place.
fn in_a_row(numbers: impl Iterator<Item = u32>) -> Vec<DeviceInput> {
    let one = |number: u32| {
        let mut input = device(number);
        input.order = Order {
            pci_address: Some(format!("{number:04x}:00:00.0")),
            ..Default::default()
        };
        input
    };
    numbers.map(one).collect()
}

#[test]
fn a_new_device_goes_where_its_neighbours_are() {
    let even = || (0..156).map(|number| number * 2);
    for (number, slice) in [(1, 0), (155, 1), (205, 1), (211, 2), (999, 2)] {
        let mut slices = Vec::new();
        publish(in_a_row(even()), &mut slices);
        assert_eq!(layout(&slices).concat().len(), 156);
        let mut after: Vec<u32> = even().chain([number]).collect();
        publish(in_a_row(after.iter().copied()), &mut slices);
        let names = layout(&slices);
        let sizes: Vec<usize> = names.iter().map(Vec::len).collect();
        let mut wanted = vec![52, 52, 52];
        wanted[slice] += 1;
        assert_eq!(sizes, wanted, "gpu-{number}");
        after.sort_unstable();
        let in_order: Vec<String> = after.iter().map(|n| format!("gpu-{n}")).collect();
        assert_eq!(names.concat(), in_order);
    }
}

#[test]
fn devices_that_come_to_two_slices_are_laid_out_again_with_all() {
    let even = || (0..156).map(|number| number * 2);
    let mut slices = Vec::new();
    publish(in_a_row(even()), &mut slices);
    publish(in_a_row(even().chain([1, 999])), &mut slices);
    let sizes: Vec<usize> = layout(&slices).iter().map(Vec::len).collect();
    assert_eq!(sizes, [52, 53, 53]);
}

#[test]
fn a_slice_that_another_version_filled_beyond_the_limit_is_divided() {
    let mut slices = Vec::new();
    publish(numbered(0..64), &mut slices);
    slices[0].spec.devices.push(device(64).device);
    publish(numbered(0..65), &mut slices);
    let sizes: Vec<usize> = layout(&slices).iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 65);
    assert!(sizes.iter().all(|size| *size <= 64), "{sizes:?}");
}
