//! The second stage of the scan: attributes of supported devices.

use serde::Serialize;

use crate::address::PciAddress;
use crate::function_reader::FunctionReader;
use crate::identity::hex8;
use crate::kind::Kind;
use crate::numa::number;

/// The attributes of a supported device that relate it to the rest of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub revision: Option<u8>,
    pub link: Option<Link>,
    /// Of a physical function that supports virtual functions.
    pub sriov: Option<Sriov>,
    /// Of a virtual function: its physical function.
    pub physfn: Option<PciAddress>,
    /// Of a physical function: its virtual functions, by index.
    pub virtfns: Vec<PciAddress>,
    pub net: Vec<String>,
    pub infiniband: Vec<String>,
    pub uverbs: Vec<String>,
    pub drm: Option<Drm>,
    pub accel: Vec<String>,
    pub vfio: Option<String>,
    /// The device was suspended by runtime power management, so its link was not read.
    pub(crate) suspended: bool,
}

/// The PCIe link of a device to the port above it. A value is `None` if the hardware or the hypervisor reports
/// "Unknown".
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

/// The names of a device's DRM nodes below `/dev/dri`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drm {
    pub card: Option<String>,
    pub render: Option<String>,
}

impl Details {
    pub(crate) fn read(reader: &mut FunctionReader<'_>, kind: Kind, driver: Option<&str>) -> Self {
        let mut details = Self {
            revision: reader.optional("revision", hex8),
            suspended: reader.optional("power/runtime_status", |text| Some(text == b"suspended"))
                == Some(true),
            ..Self::default()
        };
        // The kernel reads the link from config space, and recent kernels wake the device for it.
        if !details.suspended {
            details.link = reader.pcie_link();
        }
        details.read_virtual_functions(reader);
        if details.sriov.is_none() {
            details.physfn = reader.link_target("physfn", PciAddress::parse);
        }
        // SmartNICs on an FPGA and accelerators with network ports have network interfaces too.
        if matches!(kind, Kind::Nic | Kind::Fpga | Kind::Accelerator) {
            details.net = reader.names("net", b"");
            if details.net.is_empty() && driver == Some("virtio-pci") {
                details.net = reader.virtio_net();
            }
            details.infiniband = reader.names("infiniband", b"");
            if !details.infiniband.is_empty() {
                details.uverbs = reader.names("infiniband_verbs", b"uverbs");
            }
        }
        if matches!(kind, Kind::Gpu | Kind::Accelerator | Kind::Fpga) {
            let mut nodes = reader.names("drm", b"").into_iter();
            let card = nodes.clone().find(|name| name.starts_with("card"));
            let render = nodes.find(|name| name.starts_with("renderD"));
            details.drm = (card.is_some() || render.is_some()).then_some(Drm { card, render });
            details.accel = reader.names("accel", b"accel");
        }
        // vfio-pci and the vendors' variants of it: mlx5_vfio_pci, nvgrace_gpu_vfio_pci, xe-vfio-pci.
        if driver.is_some_and(|name| name.contains("vfio")) {
            details.vfio = reader.names("vfio-dev", b"vfio").pop();
        }
        details
    }

    /// Keeps the last known link of a suspended device.
    pub(crate) fn inherit_link(&mut self, before: Option<&Self>) {
        if self.suspended && self.link.is_none() {
            self.link = before.and_then(|details| details.link);
        }
    }

    fn read_virtual_functions(&mut self, reader: &mut FunctionReader<'_>) {
        let Some(total_vfs) = reader.optional("sriov_totalvfs", number) else {
            return;
        };
        // Not sriov_numvfs: the kernel shows it under the device's lock (sriov_numvfs_show in drivers/pci/iov.c), which
        // a driver that hangs while it is unbound keeps. The links are made and removed together with the functions.
        self.virtfns = (0..total_vfs)
            .map_while(|index| reader.link_target(&format!("virtfn{index}"), PciAddress::parse))
            .collect();
        let num_vfs = u32::try_from(self.virtfns.len()).unwrap_or(u32::MAX);
        self.sriov = Some(Sriov { total_vfs, num_vfs });
    }
}

impl FunctionReader<'_> {
    /// Returns the network interfaces of a virtio function, which are one level below, in `virtioN`.
    fn virtio_net(&mut self) -> Vec<String> {
        self.names(".", b"virtio")
            .into_iter()
            .flat_map(|name| self.names(&format!("{name}/net"), b""))
            .collect()
    }

    fn pcie_link(&mut self) -> Option<Link> {
        let link = Link {
            generation: self.optional("current_link_speed", generation).flatten(),
            width: self.optional("current_link_width", width).flatten(),
            max_generation: self.optional("max_link_speed", generation).flatten(),
            max_width: self.optional("max_link_width", width).flatten(),
        };
        let known = link
            .generation
            .or(link.width)
            .or(link.max_generation)
            .or(link.max_width);
        known.map(|_| link)
    }
}

/// Parses `8 GT/s`, `8.0 GT/s PCIe` and `Unknown`, which kernels write (pci_speed_string).
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
                // Exact comparison: these are the decimal values of the kernel's table.
                (f64::to_bits(speed) == f64::to_bits(of)).then_some(generation)
            }),
    )
}

/// Parses a link width; 0 is a link that is down, 255 an unknown one.
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
