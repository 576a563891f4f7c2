//! The full scan of a host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::address::PciAddress;
use crate::error::{Problem, TopologyError};
use crate::files::{Buffer, Dir, Listing};
use crate::function::Function;
use crate::incremental::Change;
use crate::kfd;
use crate::kind::Kind;
use crate::numa::{self, NumaFinder, NumaNode};

pub(crate) const DEVICES: &str = "bus/pci/devices";
const AMD: u16 = 0x1002;

/// Every PCI function and NUMA node of one host, at the time of the last scan or event.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) sysfs: PathBuf,
    pub(crate) nodes: Vec<NumaNode>,
    pub(crate) functions: BTreeMap<PciAddress, Function>,
    pub(crate) kfd: BTreeMap<PciAddress, u32>,
    /// By the function they are about; None for the rest.
    pub(crate) problems: BTreeMap<Option<PciAddress>, Vec<Problem>>,
    pub(crate) kfd_problems: Vec<Problem>,
    pub(crate) buffer: Buffer,
}

impl Topology {
    /// Reads the topology below `sysfs`, normally `/sys`.
    ///
    /// # Errors
    /// There is no readable sysfs. A damaged device is not an error: it is left out and reported as a [`Problem`].
    pub fn scan(sysfs: impl AsRef<Path>) -> Result<Self, TopologyError> {
        let mut topology = Self {
            sysfs: sysfs.as_ref().to_owned(),
            nodes: Vec::new(),
            functions: BTreeMap::new(),
            kfd: BTreeMap::new(),
            problems: BTreeMap::new(),
            kfd_problems: Vec::new(),
            buffer: Buffer::default(),
        };
        topology.read_all()?;
        Ok(topology)
    }

    /// Scans again and returns the changes that had no event.
    ///
    /// # Errors
    /// As [`Topology::scan`]; the topology is then as before.
    pub fn rescan(&mut self) -> Result<Change, TopologyError> {
        let mut fresh = Self::scan(&self.sysfs)?;
        for (address, function) in &mut fresh.functions {
            function.inherit_link(self.functions.get(address));
        }
        std::mem::swap(self, &mut fresh);
        Ok(Change::between(&fresh, self))
    }

    fn read_all(&mut self) -> Result<(), TopologyError> {
        let sysfs = self.open()?;
        let mut general = Vec::new();
        self.nodes = numa::read_nodes(&sysfs, &mut self.buffer, &mut general);
        if let Some(mut listing) = self.open_devices(&sysfs, &mut general)? {
            let mut addresses = Vec::new();
            let listed = listing
                .dir
                .list(b".", |name| match PciAddress::parse(name) {
                    Some(address) => addresses.push(address),
                    None => general.push(Problem::new(
                        format!("{DEVICES}/{}", name.escape_ascii()),
                        "not the name of a PCI function",
                    )),
                });
            listed.map_err(|errno| self.cannot_list(errno))?;
            // Functions with adjacent addresses share a parent directory, which is then opened once.
            addresses.sort_unstable();
            for address in addresses {
                self.read_function(&mut listing, address);
            }
            self.resolve_numa(
                &listing.dir,
                &self.functions.keys().copied().collect::<Vec<_>>(),
            );
        }
        if !general.is_empty() {
            general.sort();
            self.problems.insert(None, general);
        }
        self.read_kfd(&sysfs);
        Ok(())
    }

    pub(crate) fn open(&self) -> Result<Dir, TopologyError> {
        Dir::open(&self.sysfs).map_err(|errno| TopologyError::Open {
            path: self.sysfs.clone(),
            source: errno,
        })
    }

    fn open_devices(
        &self,
        sysfs: &Dir,
        problems: &mut Vec<Problem>,
    ) -> Result<Option<Listing>, TopologyError> {
        match sysfs.open_dir(DEVICES.as_bytes()) {
            Ok(devices) => Ok(Some(Listing::new(devices))),
            Err(Errno::NOENT) => {
                if [&b"bus"[..], b"devices"]
                    .iter()
                    .all(|folder| sysfs.open_dir(folder).is_err())
                {
                    return Err(TopologyError::NotSysfs {
                        path: self.sysfs.clone(),
                    });
                }
                problems.push(Problem::new(DEVICES, "missing: this host has no PCI"));
                Ok(None)
            }
            Err(errno) => Err(self.cannot_list(errno)),
        }
    }

    pub(crate) fn cannot_list(&self, errno: Errno) -> TopologyError {
        TopologyError::List {
            path: self.sysfs.join(DEVICES),
            source: errno,
        }
    }

    /// Updates one function and its problems; returns the previous function.
    pub(crate) fn read_function(
        &mut self,
        listing: &mut Listing,
        address: PciAddress,
    ) -> Option<Function> {
        let mut problems = Vec::new();
        let function = Function::read(listing, address, &mut self.buffer, &mut problems);
        if problems.is_empty() {
            self.problems.remove(&Some(address));
        } else {
            self.problems.insert(Some(address), problems);
        }
        match function {
            Some(mut function) => {
                function.inherit_link(self.functions.get(&address));
                self.functions.insert(address, function)
            }
            None => self.functions.remove(&address),
        }
    }

    /// Sets the NUMA node of each of these functions, after all of them have been read.
    pub(crate) fn resolve_numa(&mut self, devices: &Dir, addresses: &[PciAddress]) {
        let mut finder = NumaFinder::new(devices, &self.nodes);
        let mut found = Vec::with_capacity(addresses.len());
        for address in addresses {
            if let Some(function) = self.functions.get(address) {
                let own = |ancestor| {
                    self.functions
                        .get(&ancestor)
                        .map(|f: &Function| f.own_numa_node)
                };
                found.push((*address, finder.find(function, own, &mut self.buffer)));
            }
        }
        for (address, (node, source)) in found {
            if let Some(function) = self.functions.get_mut(&address) {
                (function.numa_node, function.numa_source) = (node, source);
            }
        }
    }

    /// Reads the KFD nodes if there is an AMD GPU; returns the previous nodes.
    pub(crate) fn read_kfd(&mut self, sysfs: &Dir) -> BTreeMap<PciAddress, u32> {
        self.kfd_problems.clear();
        let mut nodes = BTreeMap::new();
        if self.functions.values().any(is_amd_gpu) {
            nodes = kfd::read(sysfs, &mut self.buffer, &mut self.kfd_problems);
        }
        std::mem::replace(&mut self.kfd, nodes)
    }

    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }
}

pub(crate) fn is_amd_gpu(function: &Function) -> bool {
    function.vendor_id == AMD && function.kind == Kind::Gpu
}
