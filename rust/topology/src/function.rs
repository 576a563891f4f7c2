//! One PCI function as the first stage of the scan reads it: where it is and what it is.

use rustix::io::Errno;

use crate::address::PciAddress;
use crate::attributes::Details;
use crate::error::{Problem, describe};
use crate::files::{Buffer, Listing};
use crate::identity::{Identity, hex24};
use crate::kind::Kind;
use crate::numa::{NumaSource, number};
use crate::path::DevicePath;
use crate::reading::Attributes;

/// A PCI function; [`Details`] are there for wanted kinds only.
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
    /// None where the function has gone, or is damaged and said so in `problems`.
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
            // Unplugged since it was listed.
            Err(Errno::NOENT) => problems.truncate(found_before),
            Ok(_) if listing.dir.enter(name.as_bytes()).err() == Some(Errno::NOENT) => {
                problems.truncate(found_before);
                problems.push(Problem::new(name, "the link leads nowhere"));
            }
            _ => {}
        }
        None
    }

    /// Keeps what could not be asked this time from the last time.
    pub(crate) fn remember(&mut self, before: Option<&Self>) {
        let before = before.and_then(|function| function.details.as_deref());
        if let Some(details) = &mut self.details {
            details.remember_link(before);
        }
    }

    fn try_read(
        listing: &mut Listing,
        address: PciAddress,
        name: &str,
        buffer: &mut Buffer,
        problems: &mut Vec<Problem>,
    ) -> Result<Self, Problem> {
        let refused = |errno| Problem::new(name, describe(errno));
        let target = match listing.dir.link(name.as_bytes(), buffer) {
            Ok(target) => target,
            Err(Errno::INVAL) => {
                return Err(Problem::new(
                    name,
                    "not a link, so its place in the PCI tree is unknown",
                ));
            }
            Err(errno) => return Err(refused(errno)),
        };
        let path = DevicePath::parse(target, address).map_err(|what| Problem::new(name, what))?;
        let parent = listing.parent_of(target).map_err(refused)?;
        let mut attributes = Attributes::new(parent, name, buffer, problems);
        let Identity {
            class,
            ids: (vendor_id, device_id),
            subsystem,
            driver,
        } = Identity::read(&mut attributes)?;
        let kind = Kind::of(class, vendor_id, device_id);
        // A wanted device whose files contradict each other must not be handed to anyone.
        if kind.is_wanted() && attributes.required("class", hex24)? != class {
            return Err(Problem::new(
                format!("{name}/class"),
                "differs from what uevent says",
            ));
        }
        let iommu_group = attributes.linked("iommu_group", number);
        // -1 is the kernel's word for unknown.
        let own_numa_node = attributes
            .value("numa_node", |text| {
                if text == b"-1" {
                    Some(None)
                } else {
                    number(text).map(Some)
                }
            })
            .flatten();
        let details = kind
            .is_wanted()
            .then(|| Box::new(Details::read(&mut attributes, kind, driver.as_deref())));
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
