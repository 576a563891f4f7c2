//! The second stage of the scan: attributes of supported devices.

use serde::Serialize;

use crate::address::PciAddress;
use crate::driver::is_vfio_driver;
use crate::function_reader::FunctionReader;
use crate::identity::{hex8, hex16};
use crate::kind::Kind;
use crate::numa::number;
use crate::path::DevicePath;

/// The attributes of a supported device that relate it to the rest of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub revision: Option<u8>,
    pub link: Option<Link>,
    /// The link between the card and its slot. Its current values are those of the card's first port, its maximum is
    /// what this port and the port above support together.
    pub card_link: Option<Link>,
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
    /// Names below `/dev`: `accel/accel0` of the kernel's accel class, `accel0` of a TPU v4, `apex_0`.
    pub accel: Vec<String>,
    pub vfio: Option<String>,
    /// The function is bound to vfio-pci, or a variant of it, without an IOMMU.
    pub noiommu: bool,
    /// Names below `/dev`: `uio0`.
    pub uio: Vec<String>,
    /// The UUIDs of its mediated devices, which are virtual machines' shares of it; `None` if its driver makes none.
    pub mdevs: Option<Vec<String>>,
    /// Names of interfaces and nodes that are not UTF-8, which the lists above lack: the directory, a slash, and the
    /// name with escaped bytes.
    pub invalid_names: Vec<String>,
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

/// A class of character devices that drivers of accelerators make.
#[derive(Debug)]
struct AcceleratorClass {
    /// The directory in that of the function.
    dir: &'static str,
    /// The beginning of a name; a number follows. Habana's driver also makes `accel_controlD0`.
    stem: &'static str,
}

/// The accel class of the kernel (drivers/accel) and of Google's TPU drivers, Google's gasket driver, and Hailo's drivers
/// of Hailo-8 and of later devices. The driver of Hailo-8 up to 4.22 makes its nodes below no function.
const ACCELERATOR_CLASSES: [AcceleratorClass; 4] = [
    AcceleratorClass {
        dir: "accel",
        stem: "accel",
    },
    AcceleratorClass {
        dir: "apex",
        stem: "apex_",
    },
    AcceleratorClass {
        dir: "hailo_chardev",
        stem: "hailo",
    },
    AcceleratorClass {
        dir: "hailo1x",
        stem: "h1x-",
    },
];

/// The name of an IOMMU group that vfio made because there is no IOMMU (vfio_noiommu_group_alloc).
const NOIOMMU_GROUP: &[u8] = b"vfio-noiommu";

/// Directories between a function and the ports of a switch inside its card: its downstream and its upstream port.
const MAX_CARD_PORTS: usize = 2;

impl Details {
    pub(crate) fn read(
        reader: &mut FunctionReader<'_>,
        kind: Kind,
        vendor: u16,
        driver: Option<&str>,
        path: &DevicePath,
    ) -> Self {
        let mut details = Self {
            revision: reader.optional("revision", hex8),
            suspended: reader.optional("power/runtime_status", |text| Some(text == b"suspended"))
                == Some(true),
            ..Self::default()
        };
        // The kernel reads the link from config space, and recent kernels wake the device for it.
        if !details.suspended {
            details.link = reader.pcie_link("");
            details.card_link = reader.card_link(details.link, vendor, path.ports());
        }
        details.read_virtual_functions(reader);
        if details.sriov.is_none() {
            details.physfn = reader.link_target("physfn", PciAddress::parse);
        }
        // SmartNICs on an FPGA and accelerators with network ports have network interfaces too.
        if matches!(kind, Kind::Nic | Kind::Fpga | Kind::Accelerator) {
            details.net = reader.names("net", any);
            if details.net.is_empty() && driver == Some("virtio-pci") {
                details.net = reader.virtio_names("net");
            }
            details.infiniband = reader.names("infiniband", any);
            if !details.infiniband.is_empty() {
                details.uverbs = reader.names("infiniband_verbs", numbered("uverbs"));
            }
        }
        if matches!(kind, Kind::Gpu | Kind::Accelerator | Kind::Fpga) {
            let mut nodes = reader.names("drm", any);
            // Older kernels have virtio-gpu's nodes below virtioN.
            if nodes.is_empty() && driver == Some("virtio-pci") {
                nodes = reader.virtio_names("drm");
            }
            let mut nodes = nodes.into_iter();
            let card = nodes.clone().find(|name| name.starts_with("card"));
            let render = nodes.find(|name| name.starts_with("renderD"));
            details.drm = (card.is_some() || render.is_some()).then_some(Drm { card, render });
            let classes = match kind {
                Kind::Accelerator => &ACCELERATOR_CLASSES[..],
                _ => &ACCELERATOR_CLASSES[..1],
            };
            details.accel = reader
                .accelerator_entries(classes)
                .iter()
                .filter_map(|entry| reader.device_node(entry))
                .collect();
        }
        if driver.is_some_and(is_vfio_driver) {
            details.vfio = reader.names("vfio-dev", numbered("vfio")).pop();
            let group = reader.optional("iommu_group/name", |name| Some(name == NOIOMMU_GROUP));
            details.noiommu = group == Some(true);
        } else if driver.is_some() && kind != Kind::Nvme {
            if details.has_no_interface() {
                details.uio = reader.names("uio", numbered("uio"));
            }
            // A NIC may have hundreds of virtual functions, and no driver divides them further.
            if kind != Kind::Nic || details.physfn.is_none() {
                details.mdevs = reader.mediated_devices();
            }
        }
        details.invalid_names = std::mem::take(&mut reader.invalid_names);
        details
    }

    /// Keeps the last known link of a suspended device.
    pub(crate) fn inherit_link(&mut self, before: Option<&Self>) {
        if self.suspended {
            self.link = before.and_then(|details| details.link);
            self.card_link = before.and_then(|details| details.card_link);
        }
    }

    /// Whether the driver made nothing that applications use. A driver for user space replaces the one that would.
    fn has_no_interface(&self) -> bool {
        self.net.is_empty()
            && self.infiniband.is_empty()
            && self.drm.is_none()
            && self.accel.is_empty()
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
    /// Whether the driver made a node of an accelerator, whatever the class of the function is.
    pub(crate) fn has_accelerator_node(&mut self) -> bool {
        !self.accelerator_entries(&ACCELERATOR_CLASSES).is_empty()
    }

    /// Returns the directories of nodes of accelerators: `accel/accel0`.
    fn accelerator_entries(&mut self, classes: &'static [AcceleratorClass]) -> Vec<String> {
        let mut entries = Vec::new();
        for AcceleratorClass { dir, stem } in classes {
            let names = self.names(dir, numbered(stem));
            entries.extend(names.iter().map(|name| format!("{dir}/{name}")));
        }
        entries
    }

    /// Returns the name below `/dev` of the character device with this directory.
    fn device_node(&mut self, entry: &str) -> Option<String> {
        self.optional(&format!("{entry}/uevent"), devname)
    }

    /// Returns what a virtio function has of a class, which is one level below, in `virtioN`.
    fn virtio_names(&mut self, class: &str) -> Vec<String> {
        self.names(".", numbered("virtio"))
            .into_iter()
            .flat_map(|name| self.names(&format!("{name}/{class}"), any))
            .collect()
    }

    /// Returns the mediated devices of a function, which are only listed if its driver offers types of them
    /// (parent_create_sysfs_files in drivers/vfio/mdev/mdev_sysfs.c).
    fn mediated_devices(&mut self) -> Option<Vec<String>> {
        self.has_dir("mdev_supported_types")
            .then(|| self.names(".", is_uuid))
    }

    /// Returns the link between the card and its slot; `own` is that of the function, above which are `ports`.
    ///
    /// Cards of AMD and Intel have a switch of their own between the connector and the GPU. The links inside of the
    /// card are faster than any slot (AMD), or report the slowest speed that exists (Intel).
    fn card_link(&mut self, own: Option<Link>, vendor: u16, ports: usize) -> Option<Link> {
        let mut inside = 0;
        let mut above = String::from("../");
        // The port below a root bus belongs to the host, and may have the vendor of the card.
        while inside < MAX_CARD_PORTS
            && inside + 1 < ports
            && self.optional(&format!("{above}vendor"), hex16) == Some(vendor)
        {
            inside += 1;
            above.push_str("../");
        }
        let first = &above[3..];
        let mut link = if inside == 0 {
            own?
        } else {
            self.pcie_link(first)?
        };
        if inside < ports {
            let slot = self.max_link(&above);
            link.max_generation = least(link.max_generation, slot.0);
            link.max_width = least(link.max_width, slot.1);
        }
        Some(link)
    }

    /// Returns the maximum generation and width of a port; `at` is its path from the function, with a slash.
    fn max_link(&mut self, at: &str) -> (Option<u8>, Option<u8>) {
        let speed = self.optional(&format!("{at}max_link_speed"), generation);
        let lanes = self.optional(&format!("{at}max_link_width"), width);
        (speed.flatten(), lanes.flatten())
    }

    /// Returns the link of a port; `at` is its path from the function, with a slash.
    fn pcie_link(&mut self, at: &str) -> Option<Link> {
        let speed = self.optional(&format!("{at}current_link_speed"), generation);
        let lanes = self.optional(&format!("{at}current_link_width"), width);
        let (max_generation, max_width) = self.max_link(at);
        let link = Link {
            generation: speed.flatten(),
            width: lanes.flatten(),
            max_generation,
            max_width,
        };
        let known = link
            .generation
            .or(link.width)
            .or(link.max_generation)
            .or(link.max_width);
        known.map(|_| link)
    }
}

/// Parses the uevent of a character device.
fn devname(text: &[u8]) -> Option<String> {
    let name = text
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"DEVNAME="))
        .filter(|name| !name.is_empty())?;
    String::from_utf8(name.to_vec()).ok()
}

fn is_uuid(name: &[u8]) -> bool {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    name.len() == 36
        && name.iter().enumerate().all(|(at, byte)| {
            if DASHES.contains(&at) {
                *byte == b'-'
            } else {
                byte.is_ascii_hexdigit()
            }
        })
}

fn any(_: &[u8]) -> bool {
    true
}

/// Accepts the names of one class: its stem and a number.
fn numbered(stem: &str) -> impl Fn(&[u8]) -> bool {
    move |name| {
        let number = name.strip_prefix(stem.as_bytes());
        number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
    }
}

fn least(one: Option<u8>, other: Option<u8>) -> Option<u8> {
    one.into_iter().chain(other).min()
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
