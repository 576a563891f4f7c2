//! A function's place in the PCI tree, taken from the target of its symlink in `bus/pci/devices`.
//!
//! The path is the only complete source: a bridge may be missing from the bus listing, and bus numbers of
//! bridges are in `config`, which the scan never opens.

use crate::address::{PciAddress, RootBus};

/// One level above a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    Bus(RootBus),
    Device(PciAddress),
}

/// The levels above a function, root first; the function itself is not among them.
///
/// Behind Intel VMD a second root bus appears in the middle: `pci0000:e2/0000:e2:00.5/pci10000:e0/...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePath {
    root: RootBus,
    below: Box<[Hop]>,
}

impl DevicePath {
    /// Reads the target of the symlink of `address`; the error says what is wrong with it.
    pub(crate) fn parse(target: &[u8], address: PciAddress) -> Result<Self, &'static str> {
        let mut components = target.split(|&byte| byte == b'/');
        // What comes before the host bridge differs by platform (ACPI, device tree, VMBus) and says nothing.
        let root = components
            .by_ref()
            .find_map(RootBus::parse)
            .ok_or("the link does not lead below a PCI root bus")?;
        let mut below = [Hop::Bus(root); MAX_DEPTH];
        let mut depth = 0;
        for component in components {
            let slot = below
                .get_mut(depth)
                .ok_or("the link is deeper than any PCI tree")?;
            *slot = match PciAddress::parse(component) {
                Some(device) => Hop::Device(device),
                None => Hop::Bus(
                    RootBus::parse(component)
                        .ok_or("the link holds a component that is not a PCI address")?,
                ),
            };
            depth += 1;
        }
        match below[..depth].split_last() {
            Some((&Hop::Device(own), above)) if own == address => Ok(Self {
                root,
                below: above.into(),
            }),
            _ => Err("the link leads to another device"),
        }
    }

    /// The outermost root bus, which Kubernetes calls `pcieRoot`.
    #[must_use]
    pub fn root(&self) -> RootBus {
        self.root
    }

    /// The functions above, root port first.
    pub fn parents(&self) -> impl DoubleEndedIterator<Item = PciAddress> {
        self.below.iter().filter_map(|hop| match hop {
            Hop::Device(address) => Some(*address),
            Hop::Bus(_) => None,
        })
    }

    /// What lies between the outermost root bus and the function.
    pub(crate) fn below(&self) -> &[Hop] {
        &self.below
    }

    #[must_use]
    pub fn is_below(&self, address: PciAddress) -> bool {
        self.below.contains(&Hop::Device(address))
    }

    /// The upstream port of the top-most switch above the function: the device that neighbours share.
    ///
    /// Without `config` the role of a bridge follows from its place. The bridge on a root bus is a root
    /// port; the next one, if another bridge lies between it and the function, is a switch's upstream port
    /// and that other one a downstream port. A lone second bridge is a bridge to conventional PCI.
    #[must_use]
    pub fn switch(&self) -> Option<PciAddress> {
        self.below.windows(3).find_map(|hops| match *hops {
            [Hop::Device(_), Hop::Device(upstream), Hop::Device(_)] => Some(upstream),
            _ => None,
        })
    }
}

/// PCI has 256 buses per domain, so no chain of bridges is longer; real trees stay below ten.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests;
