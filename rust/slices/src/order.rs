//! The order of devices in a pool: NUMA node, PCIe switch, address, and rank among the devices of one address.
//!
//! The scheduler takes the first device that fits, so this is also how claims fill a node: one GPU before the next.

use std::cmp::Ordering;

use crate::inventory::{DeviceInput, Order};

/// Compares two devices of one pool. Total, because names are unique in a pool.
pub(crate) fn compare(left: &DeviceInput, right: &DeviceInput) -> Ordering {
    places(&left.order)
        .cmp(&places(&right.order))
        .then_with(|| natural(&left.device.name, &right.device.name))
}

type Place<'a> = (
    bool,
    Option<u32>,
    bool,
    Vec<Piece<'a>>,
    bool,
    Vec<Piece<'a>>,
    u32,
);

fn places(order: &Order) -> Place<'_> {
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

/// Whether it is unknown, then what it is.
fn address(text: Option<&str>) -> (bool, Vec<Piece<'_>>) {
    (text.is_none(), text.map(hexadecimal).unwrap_or_default())
}

/// A part of an address or name: a number where it can be read as one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'a> {
    Number(u128),
    Text(&'a str),
}

/// PCI domains are of any width, so addresses are compared as numbers: 10000:01:00.0 comes after 0000:ff:00.0.
fn hexadecimal(address: &str) -> Vec<Piece<'_>> {
    address
        .split([':', '.'])
        .map(|part| u128::from_str_radix(part, 16).map_or(Piece::Text(part), Piece::Number))
        .collect()
}

/// `mig-1g-10gb-4` comes before `mig-1g-10gb-12`, and a parent before its partitions.
pub(crate) fn natural(left: &str, right: &str) -> Ordering {
    pieces(left)
        .cmp(&pieces(right))
        .then_with(|| left.cmp(right))
}

fn pieces(name: &str) -> Vec<Piece<'_>> {
    let mut rest = name;
    let mut pieces = Vec::new();
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let end = rest
            .find(|letter: char| letter.is_ascii_digit() != digits)
            .unwrap_or(rest.len());
        let (piece, tail) = rest.split_at(end);
        pieces.push(piece.parse().map_or(Piece::Text(piece), Piece::Number));
        rest = tail;
    }
    pieces
}
