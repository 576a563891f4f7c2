//! Incremental updates: a uevent causes reads of one device and of the devices below it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::address::{PciAddress, RootBus};
use crate::error::TopologyError;
use crate::files::{Dir, Listing};
use crate::function::Function;
use crate::scan::{DEVICES, Topology, is_amd_gpu};
use crate::uevent::Uevent;

/// The changes of an event or a rescan, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub added: Vec<PciAddress>,
    pub removed: Vec<PciAddress>,
    pub changed: Vec<PciAddress>,
    /// Whether the NUMA nodes themselves changed.
    pub numa_nodes: bool,
}

/// Subsystems with devices below a PCI function that this crate reads.
const FUNCTION_SUBSYSTEMS: [&str; 12] = [
    "net",
    "infiniband",
    "infiniband_verbs",
    "drm",
    "accel",
    "apex",
    "hailo_chardev",
    "hailo1x",
    "uio",
    "vfio-dev",
    "mdev",
    "virtio",
];

impl Topology {
    /// Updates the topology from sysfs for the device that the event names.
    ///
    /// Only the location is taken from the event, so late, repeated and reordered events are harmless. After lost
    /// events, [`Topology::rescan`] restores consistency. Events of other subsystems are ignored.
    ///
    /// # Errors
    /// Sysfs cannot be opened. The topology is then unchanged.
    pub fn apply(&mut self, event: &Uevent) -> Result<Change, TopologyError> {
        match event.subsystem.as_str() {
            // CPUs or memory were added or removed, so every CPU list may differ. This is rare, so everything is read.
            "node" | "cpu" => self.rescan(),
            "pci" => match event
                .devpath
                .rsplit('/')
                .next()
                .map(|last| PciAddress::parse(last.as_bytes()))
            {
                Some(Some(address)) => self.refresh(address, Some(&event.devpath)),
                _ => Ok(Change::default()),
            },
            other if FUNCTION_SUBSYSTEMS.contains(&other) => {
                let function = event
                    .devpath
                    .rsplit('/')
                    .find_map(|part| PciAddress::parse(part.as_bytes()));
                function.map_or_else(
                    || Ok(Change::default()),
                    |address| self.refresh(address, None),
                )
            }
            _ => Ok(Change::default()),
        }
    }

    /// Reads one function again, and with `devpath` also everything below it.
    fn refresh(
        &mut self,
        address: PciAddress,
        devpath: Option<&str>,
    ) -> Result<Change, TopologyError> {
        let sysfs = self.open()?;
        let mut listing = sysfs
            .open_dir(DEVICES.as_bytes())
            .map_err(|errno| self.cannot_list(errno))
            .map(Listing::new)?;
        let mut pending = vec![address];
        if let Some(devpath) = devpath {
            pending.extend(
                self.functions
                    .values()
                    .filter(|f| f.path.is_below(address))
                    .map(|f| f.address),
            );
            // The location of a damaged function is unknown, so all damaged functions are read again.
            pending.extend(
                self.problems
                    .keys()
                    .flatten()
                    .filter(|damaged| !self.functions.contains_key(damaged)),
            );
            let dir = listing.dir.open_dir(address.to_string().as_bytes());
            if let Ok(dir) =
                dir.or_else(|_| sysfs.open_dir(devpath.trim_start_matches('/').as_bytes()))
            {
                collect_descendants(&dir, &mut pending);
            }
        }
        let mut before: Vec<(PciAddress, Option<Function>)> = Vec::with_capacity(pending.len());
        let mut seen = BTreeSet::new();
        while let Some(next) = pending.pop() {
            if !seen.insert(next) {
                continue;
            }
            let old = self.read_function(&mut listing, next);
            pending.extend(sriov_relatives(old.as_ref(), self.functions.get(&next)));
            before.push((next, old));
        }
        before.sort_by_key(|(read, _)| *read);
        let read: Vec<PciAddress> = seen.into_iter().collect();
        self.resolve_numa(&listing.dir, &read);
        let mut kfd = None;
        if before
            .iter()
            .any(|(read, old)| old.iter().chain(self.functions.get(read)).any(is_amd_gpu))
        {
            kfd = Some(self.read_kfd(&sysfs));
        }
        let mut change = Change::default();
        for (address, old) in &before {
            change.record(*address, old.as_ref(), self.functions.get(address));
        }
        if let Some(old) = kfd {
            change.record_kfd(&old, self);
        }
        Ok(change)
    }
}

/// Returns the physical or virtual functions that only one of two reads of a function names.
///
/// Functions in both are skipped: otherwise all 128 virtual functions would be read when one is added or removed.
fn sriov_relatives(old: Option<&Function>, new: Option<&Function>) -> Vec<PciAddress> {
    let named = |function: Option<&Function>| -> BTreeSet<PciAddress> {
        let details = function.and_then(|f| f.details.as_deref());
        details
            .map(|d| d.virtfns.iter().chain(&d.physfn).copied().collect())
            .unwrap_or_default()
    };
    let (old, new) = (named(old), named(new));
    old.symmetric_difference(&new).copied().collect()
}

/// Collects the functions in the directories below a function, including root buses nested by VMD.
fn collect_descendants(parent: &Dir, found: &mut Vec<PciAddress>) {
    let mut dirs = Vec::new();
    // Errors are ignored: a function that cannot be listed has already been read and reported.
    let _ = parent.list(b".", |name| {
        let address = PciAddress::parse(name);
        found.extend(address);
        if address.is_some() || RootBus::parse(name).is_some() {
            dirs.push(name.to_vec());
        }
    });
    for dir in dirs {
        if let Ok(inner) = parent.open_dir(&dir) {
            collect_descendants(&inner, found);
        }
    }
}

impl Change {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn between(old: &Topology, new: &Topology) -> Self {
        let mut change = Self {
            numa_nodes: old.nodes != new.nodes,
            ..Self::default()
        };
        for address in old
            .functions
            .keys()
            .chain(new.functions.keys())
            .collect::<BTreeSet<_>>()
        {
            change.record(
                *address,
                old.functions.get(address),
                new.functions.get(address),
            );
        }
        change.record_kfd(&old.kfd, new);
        change
    }

    fn record(&mut self, address: PciAddress, old: Option<&Function>, new: Option<&Function>) {
        match (old, new) {
            (None, Some(_)) => self.added.push(address),
            (Some(_), None) => self.removed.push(address),
            (Some(old), Some(new)) if old != new => self.changed.push(address),
            _ => {}
        }
    }

    /// Adding or removing a GPU renumbers the KFD nodes of the others.
    fn record_kfd(&mut self, old: &BTreeMap<PciAddress, u32>, new: &Topology) {
        let differs = |address: &&PciAddress| old.get(address) != new.kfd.get(address);
        let moved: Vec<_> = new.functions.keys().filter(differs).copied().collect();
        self.changed.extend(
            moved
                .into_iter()
                .filter(|address| !self.added.contains(address)),
        );
        self.changed.sort_unstable();
        self.changed.dedup();
    }
}
