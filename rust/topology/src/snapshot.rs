//! The JSON output of the topology, as in `dra-agent topology -o json`.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::address::{PciAddress, RootBus};
use crate::attributes::{Drm, Link, Sriov};
use crate::distance::Distance;
use crate::error::Problem;
use crate::function::Function;
use crate::kind::Kind;
use crate::numa::{NumaNode, NumaSource};
use crate::scan::Topology;

/// The topology. Devices are sorted by address, with numeric domains.
#[derive(Debug, Serialize)]
pub struct Snapshot<'a> {
    pub numa_nodes: &'a [NumaNode],
    pub devices: Vec<DeviceView<'a>>,
    /// Optional, because the number of pairs grows with the square of the number of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    distances: Option<Distances<'a>>,
    pub problems: Vec<&'a Problem>,
}

/// One device. A value that is unknown or not applicable is null or empty, never a default.
#[derive(Debug, Serialize)]
pub struct DeviceView<'a> {
    pub pci_address: PciAddress,
    pub kind: Kind,
    pub class: String,
    pub vendor_id: String,
    pub device_id: String,
    pub subsystem_vendor: Option<String>,
    pub subsystem_device: Option<String>,
    pub revision: Option<String>,
    pub numa_node: Option<u32>,
    pub numa_source: Option<NumaSource>,
    pub pcie_root: RootBus,
    pub parents: Vec<PciAddress>,
    pub pcie_switch: Option<PciAddress>,
    pub driver: Option<&'a str>,
    pub iommu_group: Option<u32>,
    pub link: Option<Link>,
    pub card_link: Option<Link>,
    pub sriov: Option<Sriov>,
    pub physfn: Option<PciAddress>,
    pub virtfns: &'a [PciAddress],
    pub net: &'a [String],
    pub infiniband: &'a [String],
    pub uverbs: &'a [String],
    pub drm: Option<&'a Drm>,
    pub accel: &'a [String],
    pub kfd: Option<u32>,
    pub vfio: Option<&'a str>,
    pub noiommu: bool,
    pub uio: &'a [String],
    pub mdevs: Option<&'a [String]>,
    pub invalid_names: &'a [String],
}

/// Every unordered pair of supported devices once, the lower address first: `"a,b": "PIX"`.
#[derive(Debug)]
struct Distances<'a>(Vec<&'a Function>);

impl Serialize for Distances<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let count = self.0.len();
        let mut map = serializer.serialize_map(Some(count * count.saturating_sub(1) / 2))?;
        for (index, one) in self.0.iter().enumerate() {
            for other in &self.0[index + 1..] {
                map.serialize_entry(
                    &Pair(one.address, other.address),
                    &Distance::between(one, other),
                )?;
            }
        }
        map.end()
    }
}

struct Pair(PciAddress, PciAddress);

impl Serialize for Pair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{},{}", self.0, self.1))
    }
}

impl Topology {
    /// Returns the snapshot with the distances of all pairs of supported devices.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<'_> {
        let supported = self.functions.values().filter(|f| f.kind.is_supported());
        Snapshot {
            distances: Some(Distances(supported.collect())),
            ..self.snapshot_of_devices()
        }
    }

    /// Returns the snapshot without distances; see [`Topology::distance`].
    #[must_use]
    pub fn snapshot_of_devices(&self) -> Snapshot<'_> {
        self.snapshot_with(self.functions.values().map(|f| self.view(f)).collect())
    }

    fn snapshot_with<'a>(&'a self, devices: Vec<DeviceView<'a>>) -> Snapshot<'a> {
        Snapshot {
            numa_nodes: &self.nodes,
            devices,
            distances: None,
            problems: self
                .problems
                .values()
                .flatten()
                .chain(&self.kfd_problems)
                .collect(),
        }
    }

    /// Returns the snapshot as JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        // Serialization of plain structs with string keys to memory cannot fail.
        serde_json::to_vec(&self.snapshot()).unwrap_or_default()
    }

    /// Returns the snapshot without distances as JSON.
    #[must_use]
    pub fn devices_to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.snapshot_of_devices()).unwrap_or_default()
    }

    /// Like [`Topology::devices_to_json`], with only the given devices. Addresses without a device are ignored.
    #[must_use]
    pub fn some_devices_to_json(&self, addresses: &[PciAddress]) -> Vec<u8> {
        let found = addresses.iter().filter_map(|a| self.functions.get(a));
        let devices = found.map(|function| self.view(function)).collect();
        serde_json::to_vec(&self.snapshot_with(devices)).unwrap_or_default()
    }

    /// Returns the distance of two supported devices; `None` if one is unknown or unsupported, or both are the same.
    #[must_use]
    pub fn distance(&self, one: PciAddress, other: PciAddress) -> Option<Distance> {
        let supported = |address| {
            self.functions
                .get(&address)
                .filter(|f| f.kind.is_supported())
        };
        let (one, other) = (supported(one)?, supported(other)?);
        (one.address != other.address).then(|| Distance::between(one, other))
    }

    fn view<'a>(&self, function: &'a Function) -> DeviceView<'a> {
        let details = function.details.as_deref();
        DeviceView {
            pci_address: function.address,
            kind: function.kind,
            class: format!("0x{:06x}", function.class),
            vendor_id: hex4(function.vendor_id),
            device_id: hex4(function.device_id),
            subsystem_vendor: function.subsystem.map(|(vendor, _)| hex4(vendor)),
            subsystem_device: function.subsystem.map(|(_, device)| hex4(device)),
            revision: details
                .and_then(|d| d.revision)
                .map(|revision| format!("0x{revision:02x}")),
            numa_node: function.numa_node,
            numa_source: function.numa_source,
            pcie_root: function.path.root(),
            parents: function.path.parents().collect(),
            pcie_switch: function.path.switch(),
            driver: function.driver.as_deref(),
            iommu_group: function.iommu_group,
            link: details.and_then(|d| d.link),
            card_link: details.and_then(|d| d.card_link),
            sriov: details.and_then(|d| d.sriov),
            physfn: details.and_then(|d| d.physfn),
            virtfns: details.map_or(&[], |d| &d.virtfns),
            net: details.map_or(&[], |d| &d.net),
            infiniband: details.map_or(&[], |d| &d.infiniband),
            uverbs: details.map_or(&[], |d| &d.uverbs),
            drm: details.and_then(|d| d.drm.as_ref()),
            accel: details.map_or(&[], |d| &d.accel),
            kfd: self.kfd.get(&function.address).copied(),
            vfio: details.and_then(|d| d.vfio.as_deref()),
            noiommu: details.is_some_and(|d| d.noiommu),
            uio: details.map_or(&[], |d| &d.uio),
            mdevs: details.and_then(|d| d.mdevs.as_deref()),
            invalid_names: details.map_or(&[], |d| &d.invalid_names),
        }
    }
}

fn hex4(id: u16) -> String {
    format!("0x{id:04x}")
}
