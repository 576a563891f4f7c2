//! The nodes of GPUs in the AMD kernel fusion driver (KFD).

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::address::PciAddress;
use crate::error::{Problem, describe};
use crate::files::{Buffer, Dir};
use crate::numa::number;

const NODES: &str = "class/kfd/kfd/topology/nodes";

/// Returns the lowest KFD node of each PCI function: a partitioned GPU has several.
pub(crate) fn read(
    sysfs: &Dir,
    buffer: &mut Buffer,
    problems: &mut Vec<Problem>,
) -> BTreeMap<PciAddress, u32> {
    let mut ids = Vec::new();
    match sysfs.list(NODES.as_bytes(), |name| ids.extend(number(name))) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => problems.push(Problem::new(NODES, describe(errno))),
    }
    let mut nodes = BTreeMap::new();
    for id in ids {
        let place = format!("{NODES}/{id}/properties");
        match sysfs.read(place.as_bytes(), buffer) {
            Ok(text) => {
                if let Some(address) = gpu_address(&String::from_utf8_lossy(text)) {
                    nodes
                        .entry(address)
                        .and_modify(|known: &mut u32| *known = id.min(*known))
                        .or_insert(id);
                }
            }
            Err(errno) if is_expected(errno) => {}
            Err(errno) => problems.push(Problem::new(place, describe(errno))),
        }
    }
    nodes
}

/// Whether a node that cannot be read is not a problem of the host.
///
/// The kernel returns EPERM if the cgroup of this process has no access to the device. It removes and
/// creates all nodes when one GPU changes its partition mode (`kfd_topology_update_sysfs`); a file that
/// is removed while it is open returns ENODEV.
fn is_expected(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::NOENT | Errno::NODEV)
}

/// `location_id` is bus << 8 | device << 3 | function, with a partition's number in the highest bits on
/// newer kernels (kfd_topology.c); a node without SIMD units is a CPU.
fn gpu_address(properties: &str) -> Option<PciAddress> {
    let value = |key: &str| -> Option<u64> {
        let line = properties
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    if value("simd_count")? == 0 {
        return None;
    }
    let location = value("location_id")? & 0xffff;
    Some(PciAddress {
        domain: u32::try_from(value("domain").unwrap_or(0)).ok()?,
        bus: u8::try_from(location >> 8).ok()?,
        device: u8::try_from(location >> 3 & 0x1f).ok()?,
        function: u8::try_from(location & 7).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_hidden_or_removed_is_expected() {
        for errno in [Errno::PERM, Errno::NOENT, Errno::NODEV] {
            assert!(is_expected(errno), "{errno}");
        }
        assert!(!is_expected(Errno::IO));
    }

    #[test]
    fn properties_name_the_function() {
        let address =
            gpu_address("cpu_cores_count 0\nsimd_count 152\nlocation_id 1280\ndomain 1\n");
        assert_eq!(
            address.map(|a| a.to_string()).as_deref(),
            Some("0001:05:00.0")
        );
        let partition = gpu_address("simd_count 152\nlocation_id 1073743104\ndomain 0");
        assert_eq!(
            partition.map(|a| a.to_string()).as_deref(),
            Some("0000:05:00.0")
        );
        assert_eq!(
            gpu_address("cpu_cores_count 96\nsimd_count 0\nlocation_id 0\n"),
            None
        );
        assert_eq!(gpu_address("nonsense"), None);
    }
}
