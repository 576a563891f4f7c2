//! The first stage of the scan: the location and identity of one PCI function.

use rustix::io::Errno;

use crate::address::PciAddress;
use crate::attributes::Details;
use crate::error::{Problem, describe};
use crate::files::{Buffer, Listing};
use crate::function_reader::FunctionReader;
use crate::identity::{Identity, hex24};
use crate::kind::Kind;
use crate::numa::{NumaSource, number};
use crate::path::DevicePath;

/// A PCI function. Only supported kinds have [`Details`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub address: PciAddress,
    pub path: DevicePath,
    pub kind: Kind,
    /// Base class, subclass and programming interface: 0x030200.
    pub class: u32,
    pub vendor_id: u16,
    pub device_id: u16,
    /// Vendor and device of the subsystem; bridges have none.
    pub subsystem: Option<(u16, u16)>,
    pub driver: Option<String>,
    pub iommu_group: Option<u32>,
    pub numa_node: Option<u32>,
    pub numa_source: Option<NumaSource>,
    pub details: Option<Box<Details>>,
    pub(crate) own_numa_node: Option<u32>,
}

impl Function {
    /// Returns `None` if the function was removed, or if it is damaged and reported in `problems`.
    pub(crate) fn read(
        listing: &mut Listing,
        address: PciAddress,
        buffer: &mut Buffer,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let name = address.to_string();
        let found_before = problems.len();
        match Self::try_read(listing, address, &name, buffer, problems) {
            Ok(function) => return Some(function),
            Err(problem) => problems.push(problem),
        }
        match listing.dir.link(name.as_bytes(), buffer) {
            // The function was unplugged after it was listed.
            Err(Errno::NOENT) => problems.truncate(found_before),
            Ok(_) if listing.dir.open_dir(name.as_bytes()).err() == Some(Errno::NOENT) => {
                problems.truncate(found_before);
                problems.push(Problem::new(name, "the link leads nowhere"));
            }
            _ => {}
        }
        None
    }

    /// Keeps the last known link of a suspended device.
    pub(crate) fn inherit_link(&mut self, before: Option<&Self>) {
        let before = before.and_then(|function| function.details.as_deref());
        if let Some(details) = &mut self.details {
            details.inherit_link(before);
        }
    }

    fn try_read(
        listing: &mut Listing,
        address: PciAddress,
        name: &str,
        buffer: &mut Buffer,
        problems: &mut Vec<Problem>,
    ) -> Result<Self, Problem> {
        let unreadable = |errno| Problem::new(name, describe(errno));
        let target = match listing.dir.link(name.as_bytes(), buffer) {
            Ok(target) => target,
            Err(Errno::INVAL) => {
                return Err(Problem::new(
                    name,
                    "not a link, so its place in the PCI tree is unknown",
                ));
            }
            Err(errno) => return Err(unreadable(errno)),
        };
        let path =
            DevicePath::parse(target, address).map_err(|message| Problem::new(name, message))?;
        let parent = listing.parent_of(target).map_err(unreadable)?;
        let mut reader = FunctionReader::new(parent, name, buffer, problems);
        let Identity {
            class,
            ids: (vendor_id, device_id),
            subsystem,
            driver,
        } = Identity::read(&mut reader)?;
        let mut kind = Kind::of(class, vendor_id, device_id);
        if kind == Kind::Other
            && driver.is_some()
            && Kind::may_be_accelerator(class)
            && reader.has_accelerator_node()
        {
            kind = Kind::Accelerator;
        }
        // A device with contradictory files must not be allocated.
        if kind.is_supported() && reader.required("class", hex24)? != class {
            return Err(Problem::new(
                format!("{name}/class"),
                "differs from the class in uevent",
            ));
        }
        let iommu_group = reader.link_target("iommu_group", number);
        // The kernel writes -1 if the node is unknown.
        let own_numa_node = reader
            .optional("numa_node", |text| {
                if text == b"-1" {
                    Some(None)
                } else {
                    number(text).map(Some)
                }
            })
            .flatten();
        let details = kind.is_supported().then(|| {
            let driver = driver.as_deref();
            Box::new(Details::read(&mut reader, kind, vendor_id, driver, &path))
        });
        Ok(Self {
            address,
            path,
            kind,
            class,
            vendor_id,
            device_id,
            subsystem,
            driver,
            iommu_group,
            numa_node: None,
            numa_source: None,
            details,
            own_numa_node,
        })
    }
}
