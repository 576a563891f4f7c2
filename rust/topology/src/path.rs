//! The location of a function in the PCI tree, from the target of its symlink in `bus/pci/devices`.
//!
//! The path is the only complete source: a bridge may be missing from the bus listing, and the bus numbers of bridges
//! are in `config`, which the scan never opens.

use crate::address::{PciAddress, RootBus};

/// One level above a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathSegment {
    Bus(RootBus),
    Device(PciAddress),
}

/// The levels above a function, root first, without the function.
///
/// Behind Intel VMD a second root bus appears in the middle: `pci0000:e2/0000:e2:00.5/pci10000:e0/...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePath {
    root: RootBus,
    below: Box<[PathSegment]>,
}

impl DevicePath {
    /// Parses the target of the symlink of `address`.
    ///
    /// # Errors
    /// The error of the target.
    pub(crate) fn parse(target: &[u8], address: PciAddress) -> Result<Self, &'static str> {
        let mut components = target.split(|&byte| byte == b'/');
        // The components before the host bridge differ by platform (ACPI, device tree, VMBus) and are ignored.
        let root = components
            .by_ref()
            .find_map(RootBus::parse)
            .ok_or("the link does not lead below a PCI root bus")?;
        let mut below = [PathSegment::Bus(root); MAX_DEPTH];
        let mut depth = 0;
        for component in components {
            let slot = below
                .get_mut(depth)
                .ok_or("the link is deeper than any PCI tree")?;
            *slot = match PciAddress::parse(component) {
                Some(device) => PathSegment::Device(device),
                None => PathSegment::Bus(
                    RootBus::parse(component)
                        .ok_or("the link contains a component that is not a PCI address")?,
                ),
            };
            depth += 1;
        }
        match below[..depth].split_last() {
            Some((&PathSegment::Device(own), above)) if own == address => Ok(Self {
                root,
                below: above.into(),
            }),
            _ => Err("the link leads to another device"),
        }
    }

    /// Returns the outermost root bus, `pcieRoot` in Kubernetes.
    #[must_use]
    pub fn root(&self) -> RootBus {
        self.root
    }

    /// Returns the functions above, root port first.
    pub fn parents(&self) -> impl DoubleEndedIterator<Item = PciAddress> {
        self.below.iter().filter_map(|segment| match segment {
            PathSegment::Device(address) => Some(*address),
            PathSegment::Bus(_) => None,
        })
    }

    /// Returns the number of ports between the function and the nearest root bus above, the root port included.
    pub(crate) fn ports(&self) -> usize {
        let ports = self.below.iter().rev();
        ports
            .take_while(|segment| matches!(segment, PathSegment::Device(_)))
            .count()
    }

    /// Returns the segments between the outermost root bus and the function.
    pub(crate) fn below(&self) -> &[PathSegment] {
        &self.below
    }

    #[must_use]
    pub fn is_below(&self, address: PciAddress) -> bool {
        self.below.contains(&PathSegment::Device(address))
    }

    /// Returns the upstream port of the topmost switch above the function: the bridge that devices on one switch share.
    ///
    /// The role of a bridge follows from its position, because `config` is not read. The bridge on a root bus is a root
    /// port. If two more bridges follow, they are the upstream and a downstream port of a switch. A single second
    /// bridge is a bridge to conventional PCI.
    #[must_use]
    pub fn switch(&self) -> Option<PciAddress> {
        self.below.windows(3).find_map(|segments| match *segments {
            [
                PathSegment::Device(_),
                PathSegment::Device(upstream),
                PathSegment::Device(_),
            ] => Some(upstream),
            _ => None,
        })
    }
}

/// The maximum number of segments. PCI has 256 buses per domain, but real trees have fewer than ten levels.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests;
