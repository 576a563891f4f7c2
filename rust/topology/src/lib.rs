//! The PCIe and NUMA topology of one host, read from sysfs and kept current by uevents.
//!
//! Knows nothing of vendors' libraries, Kubernetes or Python. Every path starts at the root that the
//! caller names, so a simulated or recorded host is read exactly as a real one.
//!
//! The scan has two stages: every PCI function gives its place (the symlink in `bus/pci/devices`) and what
//! it is (`uevent`); only functions of a wanted [`Kind`] give what is expensive or optional. `config` is
//! never opened: a read of it wakes a sleeping device and costs up to a hundred times an attribute.

mod address;
mod apply;
mod attributes;
mod distance;
mod error;
mod files;
mod function;
mod identity;
mod kfd;
mod kind;
mod numa;
mod path;
mod reading;
mod scan;
mod snapshot;
mod socket;
mod uevent;

pub use address::{PciAddress, RootBus};
pub use apply::Change;
pub use attributes::{Details, Drm, Link, Sriov};
pub use distance::Distance;
pub use error::{Problem, TopologyError};
pub use function::Function;
pub use kind::Kind;
pub use numa::{NumaNode, NumaSource};
pub use path::{DevicePath, Hop};
pub use scan::Topology;
pub use snapshot::{DeviceView, Snapshot};
pub use socket::{Received, UeventSocket};
pub use uevent::{Uevent, UeventError};
