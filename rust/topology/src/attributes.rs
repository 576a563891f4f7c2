//! The second stage: what only wanted devices are asked for.

use serde::Serialize;

use crate::address::PciAddress;
use crate::identity::hex8;
use crate::kind::Kind;
use crate::numa::number;
use crate::reading::Attributes;

/// A wanted device's links to the rest of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub revision: Option<u8>,
    pub link: Option<Link>,
    /// Of a physical function that can have virtual ones.
    pub sriov: Option<Sriov>,
    /// Of a virtual function: its physical one.
    pub physfn: Option<PciAddress>,
    /// Of a physical function: its virtual ones, in their order.
    pub virtfns: Vec<PciAddress>,
    pub net: Vec<String>,
    pub infiniband: Vec<String>,
    pub uverbs: Vec<String>,
    pub drm: Option<Drm>,
    pub accel: Vec<String>,
    pub vfio: Option<String>,
    /// Runtime power management had put it to sleep, so its link was not asked.
    pub(crate) asleep: bool,
}

/// The PCIe link of a device to the port above it; None where the hardware or the hypervisor says "Unknown".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Link {
    pub generation: Option<u8>,
    pub width: Option<u8>,
    pub max_generation: Option<u8>,
    pub max_width: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sriov {
    pub total_vfs: u32,
    pub num_vfs: u32,
}

/// The names of a device's DRM nodes, as they are called below `/dev/dri`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drm {
    pub card: Option<String>,
    pub render: Option<String>,
}

impl Details {
    pub(crate) fn read(attributes: &mut Attributes<'_>, kind: Kind, driver: Option<&str>) -> Self {
        let mut details = Self {
            revision: attributes.value("revision", hex8),
            asleep: attributes.value("power/runtime_status", |text| Some(text == b"suspended"))
                == Some(true),
            ..Self::default()
        };
        // Kernels read the link from config space, and recent ones wake the device for that.
        if !details.asleep {
            details.link = attributes.pcie_link();
        }
        details.read_virtual_functions(attributes);
        if details.sriov.is_none() {
            details.physfn = attributes.linked("physfn", PciAddress::parse);
        }
        // SmartNICs on an FPGA and accelerators with network ports have interfaces too.
        if matches!(kind, Kind::Nic | Kind::Fpga | Kind::Accelerator) {
            details.net = attributes.names("net", b"");
            if details.net.is_empty() && driver == Some("virtio-pci") {
                details.net = attributes.virtio_net();
            }
            details.infiniband = attributes.names("infiniband", b"");
            if !details.infiniband.is_empty() {
                details.uverbs = attributes.names("infiniband_verbs", b"uverbs");
            }
        }
        if matches!(kind, Kind::Gpu | Kind::Accelerator | Kind::Fpga) {
            let mut nodes = attributes.names("drm", b"").into_iter();
            let card = nodes.clone().find(|name| name.starts_with("card"));
            let render = nodes.find(|name| name.starts_with("renderD"));
            details.drm = (card.is_some() || render.is_some()).then_some(Drm { card, render });
            details.accel = attributes.names("accel", b"accel");
        }
        // vfio-pci and the vendors' variants of it: mlx5_vfio_pci, nvgrace_gpu_vfio_pci, xe-vfio-pci.
        if driver.is_some_and(|name| name.contains("vfio")) {
            details.vfio = attributes.names("vfio-dev", b"vfio").pop();
        }
        details
    }

    /// A sleeping device's link is the one that it had when it was awake, if that is known.
    pub(crate) fn remember_link(&mut self, before: Option<&Self>) {
        if self.asleep && self.link.is_none() {
            self.link = before.and_then(|details| details.link);
        }
    }

    fn read_virtual_functions(&mut self, attributes: &mut Attributes<'_>) {
        let Some(total_vfs) = attributes.value("sriov_totalvfs", number) else {
            return;
        };
        // Not sriov_numvfs: the kernel shows it under the device's lock (sriov_numvfs_show in drivers/pci/iov.c), which
        // a driver that hangs while it is unbound keeps. The links are made and removed together with the functions.
        self.virtfns = (0..total_vfs)
            .map_while(|index| attributes.linked(&format!("virtfn{index}"), PciAddress::parse))
            .collect();
        let num_vfs = u32::try_from(self.virtfns.len()).unwrap_or(u32::MAX);
        self.sriov = Some(Sriov { total_vfs, num_vfs });
    }
}

impl Attributes<'_> {
    /// A virtio function carries its network interface one level down, below `virtioN`.
    fn virtio_net(&mut self) -> Vec<String> {
        self.names(".", b"virtio")
            .into_iter()
            .flat_map(|name| self.names(&format!("{name}/net"), b""))
            .collect()
    }

    fn pcie_link(&mut self) -> Option<Link> {
        let link = Link {
            generation: self.value("current_link_speed", generation).flatten(),
            width: self.value("current_link_width", width).flatten(),
            max_generation: self.value("max_link_speed", generation).flatten(),
            max_width: self.value("max_link_width", width).flatten(),
        };
        let known = link
            .generation
            .or(link.width)
            .or(link.max_generation)
            .or(link.max_width);
        known.map(|_| link)
    }
}

/// `8 GT/s`, `8.0 GT/s PCIe` and `Unknown` are all in use (kernel pci_speed_string).
fn generation(text: &[u8]) -> Option<Option<u8>> {
    if text.starts_with(b"Unknown") {
        return Some(None);
    }
    let speed: f64 = std::str::from_utf8(text)
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    Some(
        [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0]
            .into_iter()
            .zip(1..)
            .find_map(|(of, generation)| {
                // Exact: these are the decimal texts of the kernel's own table.
                (f64::to_bits(speed) == f64::to_bits(of)).then_some(generation)
            }),
    )
}

/// 0 stands for a link that is down and 255 for one that is not known.
fn width(text: &[u8]) -> Option<Option<u8>> {
    let width = number(text)?;
    Some(
        u8::try_from(width)
            .ok()
            .filter(|width| (1..=32).contains(width)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds_have_generations() {
        for (text, expected) in [
            ("2.5 GT/s", Some(Some(1))),
            ("2.5 GT/s PCIe", Some(Some(1))),
            ("8 GT/s", Some(Some(3))),
            ("8.0 GT/s PCIe", Some(Some(3))),
            ("64.0 GT/s PCIe", Some(Some(6))),
            ("Unknown", Some(None)),
            ("Unknown speed", Some(None)),
            ("3 GT/s", Some(None)),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(generation(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(width(b"16"), Some(Some(16)));
        assert_eq!(width(b"0"), Some(None));
        assert_eq!(width(b"255"), Some(None));
        assert_eq!(width(b"wide"), None);
    }
}
