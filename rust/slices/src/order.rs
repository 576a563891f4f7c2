//! The order of devices in a pool: NUMA node, PCIe switch, address, and rank among the devices of one address.
//!
//! The scheduler takes the first device that fits, so claims fill the devices of a node in this order.

use std::cmp::Ordering;

use crate::inventory::{DeviceInput, Order};

/// Sorts the devices of one pool. The order is total, because names are unique in a pool.
///
/// The keys are computed once: those of a comparison take longer than the comparison.
pub(crate) fn sort(devices: Vec<DeviceInput>) -> Vec<DeviceInput> {
    let keys: Vec<_> = devices
        .iter()
        .map(|input| {
            let name = input.device.name.as_str();
            (sort_key(&input.order), parts(name), name)
        })
        .collect();
    let mut ranks: Vec<usize> = (0..devices.len()).collect();
    ranks.sort_by(|left, right| keys[*left].cmp(&keys[*right]));
    let mut unsorted: Vec<Option<DeviceInput>> = devices.into_iter().map(Some).collect();
    ranks
        .into_iter()
        .filter_map(|rank| unsorted[rank].take())
        .collect()
}

type SortKey<'a> = (
    bool,
    Option<u32>,
    bool,
    Vec<KeyPart<'a>>,
    bool,
    Vec<KeyPart<'a>>,
    u32,
);

fn sort_key(order: &Order) -> SortKey<'_> {
    let (no_switch, switch) = address(order.pcie_switch.as_deref());
    let (no_address, pci) = address(order.pci_address.as_deref());
    (
        order.numa_node.is_none(),
        order.numa_node,
        no_switch,
        switch,
        no_address,
        pci,
        order.rank,
    )
}

/// Returns whether the address is unknown, so that unknown ones sort last, and its parts.
fn address(text: Option<&str>) -> (bool, Vec<KeyPart<'_>>) {
    (text.is_none(), text.map(hexadecimal).unwrap_or_default())
}

/// A part of an address or name: a number if it can be parsed as one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyPart<'a> {
    Number(u128),
    Text(&'a str),
}

/// Splits an address into numbers, because PCI domains vary in width: 10000:01:00.0 sorts after 0000:ff:00.0.
fn hexadecimal(address: &str) -> Vec<KeyPart<'_>> {
    address
        .split([':', '.'])
        .map(|part| u128::from_str_radix(part, 16).map_or(KeyPart::Text(part), KeyPart::Number))
        .collect()
}

/// Compares names in natural order: `mig-1g-10gb-4` before `mig-1g-10gb-12`, and a parent before its partitions.
pub(crate) fn natural(left: &str, right: &str) -> Ordering {
    parts(left).cmp(&parts(right)).then_with(|| left.cmp(right))
}

fn parts(name: &str) -> Vec<KeyPart<'_>> {
    let mut rest = name;
    let mut parts = Vec::new();
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let end = rest
            .find(|letter: char| letter.is_ascii_digit() != digits)
            .unwrap_or(rest.len());
        let (part, tail) = rest.split_at(end);
        parts.push(part.parse().map_or(KeyPart::Text(part), KeyPart::Number));
        rest = tail;
    }
    parts
}
