//! Properties of all inventories and all changes of them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot continue should stop"
)]

mod host;

use std::collections::BTreeSet;

use dra_api::ResourceSlice;
use dra_slices::{DeviceInput, Operation};
use host::{POOL, device, layout, partition, publish, whole};
use proptest::prelude::*;

fn devices(numbers: &BTreeSet<u32>) -> Vec<DeviceInput> {
    // Every eighth device is partitioned, so that there are counters too.
    numbers
        .iter()
        .map(|n| {
            if n % 8 == 3 {
                partition(*n)
            } else {
                device(*n)
            }
        })
        .collect()
}

fn numbers() -> impl Strategy<Value = BTreeSet<u32>> {
    prop::collection::btree_set(0_u32..400, 0..280)
}

fn published(numbers: &BTreeSet<u32>) -> Vec<ResourceSlice> {
    let mut slices = Vec::new();
    publish(devices(numbers), &mut slices);
    slices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_device_is_published_once_and_every_pool_is_whole(
        first in numbers(), then in numbers(),
    ) {
        let mut slices = published(&first);
        publish(devices(&then), &mut slices);
        prop_assert!(whole(&slices));
        let names: Vec<String> = layout(&slices).concat();
        let wanted: BTreeSet<String> = devices(&then).into_iter().map(|input| input.device.name).collect();
        prop_assert_eq!(names.len(), wanted.len());
        prop_assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), wanted);
    }

    #[test]
    fn what_is_published_needs_no_write(first in numbers(), then in numbers()) {
        let mut slices = published(&first);
        publish(devices(&then), &mut slices);
        prop_assert_eq!(publish(devices(&then), &mut slices), []);
    }

    #[test]
    fn one_device_more_or_less_changes_one_slice_of_devices(first in numbers(), changes in prop::collection::vec(0_u32..400, 1..12)) {
        let mut numbers = first;
        let mut slices = published(&numbers);
        for n in changes {
            let before = layout(&slices);
            let full = before.iter().all(|names| names.len() == dra_slices::DEVICES_PER_SLICE);
            if !numbers.remove(&n) {
                numbers.insert(n);
            }
            publish(devices(&numbers), &mut slices);
            let after = layout(&slices);
            let changed = after.iter().filter(|names| !before.contains(names)).count();
            prop_assert!(changed <= 1, "{changed} slices changed");
            prop_assert!(after.len() <= before.len() + usize::from(full));
        }
    }

    #[test]
    fn a_fresh_pool_is_in_order_in_as_few_even_slices_as_possible(numbers in numbers()) {
        let slices = layout(&published(&numbers));
        prop_assert_eq!(slices.len(), numbers.len().div_ceil(64));
        let sizes: BTreeSet<usize> = slices.iter().map(Vec::len).collect();
        if let (Some(least), Some(most)) = (sizes.first(), sizes.last()) {
            prop_assert!(most - least <= 1);
        }
        let mut wanted = devices(&numbers);
        let key = |input: &DeviceInput| {
            let order = &input.order;
            // Numbers in these names have one width, so that text order is the right order.
            let unknown_last = |text: &Option<String>| (text.is_none(), text.clone());
            (order.numa_node.is_none(), order.numa_node, unknown_last(&order.pcie_switch), order.pci_address.clone())
        };
        wanted.sort_by_key(key);
        let wanted: Vec<String> = wanted.into_iter().map(|input| input.device.name).collect();
        prop_assert_eq!(slices.concat(), wanted);
    }

    #[test]
    fn published_slices_keep_the_limits_for_all_devices(spoiled in prop::collection::vec((0_u32..120, 0_u8..7), 0..150)) {
        let mut inputs = Vec::new();
        let mut good = BTreeSet::new();
        for (n, how) in spoiled {
            let mut input = device(n);
            match how {
                0 => input.device.name = "x".repeat(64),
                1 => input.device.attributes = (0..40).map(|a| (format!("a{a}"), Default::default())).collect(),
                2 => input.device.taints = vec![Default::default(); 17],
                3 => input.device.binding_conditions = vec!["ready".into()],
                4 => input = partition(n + 1000),
                _ => { good.insert(input.device.name.clone()); }
            }
            inputs.push(input);
        }
        let mut source = host::inventory(inputs, &[]);
        source.pools[0].counter_sets.clear();
        let desired = dra_slices::desired_slices(source.clone()).unwrap();
        let mut slices = Vec::new();
        // The API server of these tests refuses slices over a limit.
        host::apply(&dra_slices::diff(&desired.slices, &[]), &mut slices);
        prop_assert_eq!(layout(&slices).concat().into_iter().collect::<BTreeSet<_>>(), good);
        prop_assert!(desired.problems.iter().all(|problem| problem.pool == POOL && !problem.message.is_empty()));
    }

    #[test]
    fn a_taint_never_moves_a_device(numbers in numbers(), tainted in prop::collection::btree_set(0_u32..400, 0..100)) {
        let mut slices = published(&numbers);
        let before = layout(&slices);
        let mut inputs = devices(&numbers);
        for (n, input) in numbers.iter().zip(&mut inputs) {
            if tainted.contains(n) {
                let taint = dra_api::DeviceTaint {
                    key: "dra-agent.internal/unhealthy".into(), effect: "NoSchedule".into(), ..Default::default()
                };
                input.device.taints.push(taint);
            }
        }
        publish(inputs.clone(), &mut slices);
        prop_assert_eq!(layout(&slices), before);
        prop_assert_eq!(publish(inputs, &mut slices), []);
    }

    #[test]
    fn more_than_one_change_starts_a_generation(first in numbers(), then in numbers()) {
        let mut slices = published(&first);
        let before = slices.first().map(|slice| slice.spec.pool.generation);
        let kept: BTreeSet<String> = slices.iter().map(|slice| slice.metadata.name.clone()).collect();
        let writes = publish(devices(&then), &mut slices);
        let (Some(before), Some(after)) = (before, slices.first()) else { return Ok(()) };
        let survivors = slices.iter().filter(|slice| kept.contains(&slice.metadata.name)).count();
        let updates = writes.iter().filter(|write| write.op == Operation::Update).count();
        let creations = writes.iter().filter(|write| write.op == Operation::Create).count();
        if creations == 0 && updates <= 1 {
            prop_assert_eq!(after.spec.pool.generation, before);
        } else {
            prop_assert_eq!(after.spec.pool.generation, before + 1);
            prop_assert_eq!(updates, survivors);
        }
        prop_assert!(slices.iter().all(|slice| slice.spec.pool.name == POOL));
    }
}
