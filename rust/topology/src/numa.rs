//! NUMA nodes, and the resolution of the node of functions that do not report one.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use rustix::io::Errno;
use serde::Serialize;

use crate::address::{PciAddress, RootBus};
use crate::error::{Problem, describe};
use crate::files::{Buffer, Dir};
use crate::function::Function;
use crate::path::PathSegment;

/// One NUMA node of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    pub id: u32,
    /// The CPU package of the node's first CPU; one package may have several nodes (SNC, NPS).
    pub socket: Option<u32>,
    /// In the kernel's list format, `0-7,16-23`; empty for a memory-only node.
    pub cpus: String,
    pub memory_bytes: Option<u64>,
    /// The distances to all nodes, ordered by id, from the firmware's SLIT; 10 is the node itself.
    pub distances: Vec<u32>,
}

/// The source of a function's NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaSource {
    /// Its own `numa_node`.
    Device,
    /// The nearest function above that reports a node.
    Ancestor,
    /// The local CPUs of its root bus, if they belong to exactly one node.
    Cpulist,
}

pub(crate) fn read_nodes(
    sysfs: &Dir,
    buffer: &mut Buffer,
    problems: &mut Vec<Problem>,
) -> Vec<NumaNode> {
    const NODES: &str = "devices/system/node";
    let mut ids = Vec::new();
    let listed = sysfs.list(NODES.as_bytes(), |name| {
        ids.extend(name.strip_prefix(b"node").and_then(number));
    });
    match listed {
        // A kernel built without NUMA does not have this directory.
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => problems.push(Problem::new(NODES, describe(errno))),
    }
    ids.sort_unstable();
    let mut nodes = Vec::new();
    for id in ids {
        let mut text = |file: &str| {
            let place = format!("{NODES}/node{id}/{file}");
            match sysfs.read(place.as_bytes(), buffer) {
                Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Err(Errno::NOENT) => String::new(),
                Err(errno) => {
                    problems.push(Problem::new(place, describe(errno)));
                    String::new()
                }
            }
        };
        let (cpus, memory, distances) = (text("cpulist"), text("meminfo"), text("distance"));
        let first = cpu_ranges(&cpus).and_then(|ranges| ranges.first().map(|range| *range.start()));
        let package =
            first.map(|cpu| format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"));
        nodes.push(NumaNode {
            id,
            // -1 if the firmware does not report it.
            socket: package
                .and_then(|place| sysfs.read(place.as_bytes(), buffer).ok().and_then(number)),
            memory_bytes: memory_bytes(&memory),
            distances: distances
                .split_ascii_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect(),
            cpus,
        });
    }
    nodes
}

/// Parses the line `Node 0 MemTotal:       65724876 kB`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let (_, rest) = meminfo.split_once("MemTotal:")?;
    let kib: u64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

pub(crate) fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Returns the ranges of a CPU list; `None` if it is invalid.
fn cpu_ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let list = list.trim();
    if list.is_empty() {
        return Some(Vec::new());
    }
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .collect()
}

/// Returns the node that a CPU list overlaps, if it overlaps exactly one.
fn only_node(list: &str, nodes: &[NumaNode]) -> Option<u32> {
    let near = cpu_ranges(list)?;
    let overlaps = |node: &&NumaNode| {
        let own = cpu_ranges(&node.cpus).unwrap_or_default();
        own.iter().any(|a| {
            near.iter()
                .any(|b| a.start() <= b.end() && b.start() <= a.end())
        })
    };
    let mut overlapping = nodes.iter().filter(overlaps);
    match (overlapping.next(), overlapping.next()) {
        (Some(node), None) => Some(node.id),
        _ => None,
    }
}

/// Finds the node of functions that do not report one. Caches the nodes of root buses and unlisted bridges.
#[derive(Debug)]
pub(crate) struct NumaFinder<'a> {
    devices: &'a Dir,
    nodes: &'a [NumaNode],
    roots: HashMap<(RootBus, Option<PciAddress>), Option<u32>>,
    unlisted: HashMap<PciAddress, Option<u32>>,
}

impl<'a> NumaFinder<'a> {
    pub(crate) fn new(devices: &'a Dir, nodes: &'a [NumaNode]) -> Self {
        Self {
            devices,
            nodes,
            roots: HashMap::new(),
            unlisted: HashMap::new(),
        }
    }

    /// `own_node` returns the `numa_node` of a listed function; the outer `None` means that the function is not listed.
    pub(crate) fn find(
        &mut self,
        function: &Function,
        own_node: impl Fn(PciAddress) -> Option<Option<u32>>,
        buffer: &mut Buffer,
    ) -> (Option<u32>, Option<NumaSource>) {
        if let Some(node) = function.own_numa_node {
            return (Some(node), Some(NumaSource::Device));
        }
        let below = function.path.below();
        for (up, segment) in below.iter().rev().enumerate() {
            let PathSegment::Device(ancestor) = *segment else {
                continue;
            };
            let node = own_node(ancestor).unwrap_or_else(|| {
                *self.unlisted.entry(ancestor).or_insert_with(|| {
                    let place = ancestor_dir(function.address, up + 1) + "numa_node";
                    self.devices
                        .read(place.as_bytes(), buffer)
                        .ok()
                        .and_then(number)
                })
            });
            if node.is_some() {
                return (node, Some(NumaSource::Ancestor));
            }
        }
        // If the root bus has no affinity, the first function below it is read. So the cache key contains both.
        let root = function.path.root();
        let first = function.path.parents().next();
        let node = *self
            .roots
            .entry((root, first.or(Some(function.address))))
            .or_insert_with(|| {
                let name = root.to_string();
                let bus = name.trim_start_matches("pci");
                let top = ancestor_dir(function.address, below.len() + 1);
                let affinity = format!("{top}pci_bus/{bus}/cpulistaffinity");
                let nearest = ancestor_dir(function.address, below.len()) + "local_cpulist";
                [affinity, nearest].iter().find_map(|place| {
                    let list = self.devices.read(place.as_bytes(), buffer).ok()?;
                    only_node(std::str::from_utf8(list).ok()?, self.nodes)
                })
            });
        (node, node.map(|_| NumaSource::Cpulist))
    }
}

/// Returns the directory `levels` above that of a function, relative to the bus listing.
///
/// `..` after the symlink leads to the real parent, even if the parent is missing from the listing.
fn ancestor_dir(address: PciAddress, levels: usize) -> String {
    format!("{address}/{}", "../".repeat(levels))
}

#[cfg(test)]
mod tests;
