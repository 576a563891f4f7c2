//! Keeping the topology current: one uevent costs a look at one device and what hangs below it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::address::{PciAddress, RootBus};
use crate::error::TopologyError;
use crate::files::{Dir, Listing};
use crate::function::Function;
use crate::scan::{DEVICES, Topology, is_amd_gpu};
use crate::uevent::Uevent;

/// What an event or a rescan changed, by address; all empty where it changed nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub added: Vec<PciAddress>,
    pub removed: Vec<PciAddress>,
    pub changed: Vec<PciAddress>,
    /// Whether the NUMA nodes themselves changed.
    pub numa_nodes: bool,
}

/// Subsystems whose devices this crate reads something of; the devices lie below their PCI function.
const BELOW_A_FUNCTION: [&str; 7] = [
    "net",
    "infiniband",
    "infiniband_verbs",
    "drm",
    "accel",
    "vfio-dev",
    "virtio",
];

impl Topology {
    /// Brings the topology to what sysfs says now about the device that the event names.
    ///
    /// The event only tells where to look, so a late, repeated or reordered one does no harm, and one that
    /// was lost is healed by [`Topology::rescan`]. Events of other subsystems change nothing.
    ///
    /// # Errors
    /// Where sysfs itself cannot be opened; the topology is then as before.
    pub fn apply(&mut self, event: &Uevent) -> Result<Change, TopologyError> {
        match event.subsystem.as_str() {
            // CPUs moved between being and not being there: every CPU list may differ. Rare, so no finer.
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
            other if BELOW_A_FUNCTION.contains(&other) => {
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
            .enter(DEVICES.as_bytes())
            .map_err(|errno| self.cannot_list(errno))
            .map(Listing::new)?;
        let mut waiting = vec![address];
        if let Some(devpath) = devpath {
            waiting.extend(
                self.functions
                    .values()
                    .filter(|f| f.path.is_below(address))
                    .map(|f| f.address),
            );
            // Where a damaged function hangs is not known, so each of the few is looked at again.
            waiting.extend(
                self.problems
                    .keys()
                    .flatten()
                    .filter(|damaged| !self.functions.contains_key(damaged)),
            );
            let place = listing.dir.enter(address.to_string().as_bytes());
            if let Ok(place) =
                place.or_else(|_| sysfs.enter(devpath.trim_start_matches('/').as_bytes()))
            {
                collect_below(&place, &mut waiting);
            }
        }
        let mut before: Vec<(PciAddress, Option<Function>)> = Vec::with_capacity(waiting.len());
        let mut seen = BTreeSet::new();
        while let Some(next) = waiting.pop() {
            if !seen.insert(next) {
                continue;
            }
            let old = self.read_function(&mut listing, next);
            waiting.extend(relatives(old.as_ref(), self.functions.get(&next)));
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

/// Functions whose own attributes name this one: a physical function for its virtual ones and back.
///
/// Only what the two readings disagree about is followed, or each of 128 virtual functions would be read
/// when one comes or goes.
fn relatives(old: Option<&Function>, new: Option<&Function>) -> Vec<PciAddress> {
    let named = |function: Option<&Function>| -> BTreeSet<PciAddress> {
        let details = function.and_then(|f| f.details.as_deref());
        details
            .map(|d| d.virtfns.iter().chain(&d.physfn).copied().collect())
            .unwrap_or_default()
    };
    let (old, new) = (named(old), named(new));
    old.symmetric_difference(&new).copied().collect()
}

/// Functions in the folders below a function's own, through root buses that VMD nests there.
fn collect_below(place: &Dir, found: &mut Vec<PciAddress>) {
    let mut folders = Vec::new();
    // Best effort: a function that cannot be listed has been read, and reported, already.
    let _ = place.list(b".", |name| {
        let address = PciAddress::parse(name);
        found.extend(address);
        if address.is_some() || RootBus::parse(name).is_some() {
            folders.push(name.to_vec());
        }
    });
    for folder in folders {
        if let Ok(inner) = place.enter(&folder) {
            collect_below(&inner, found);
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

    /// A GPU that comes or goes renumbers the KFD nodes of the others.
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
