//! The PCIe and NUMA topology of one host, read from sysfs and updated by uevents.
//!
//! Independent of vendor libraries, Kubernetes and Python. All paths are relative to a root that the caller names, so a
//! simulated or recorded host is read in the same way as a real one.
//!
//! The scan has two stages. For every PCI function it reads the location (the symlink in `bus/pci/devices`) and the
//! identity (`uevent`). For functions of a supported [`Kind`] it also reads expensive and optional attributes. It never
//! opens `config`: a read of it wakes a suspended device and takes up to a hundred times as long as an attribute.

mod address;
mod attributes;
mod distance;
mod driver;
mod error;
mod files;
mod function;
mod function_reader;
mod identity;
mod incremental;
mod kfd;
mod kind;
mod numa;
mod path;
mod scan;
mod snapshot;
mod socket;
mod uevent;

pub use address::{PciAddress, RootBus};
pub use attributes::{Details, Drm, Link, Sriov};
pub use distance::Distance;
pub use driver::is_vfio_driver;
pub use error::{Problem, TopologyError};
pub use function::Function;
pub use incremental::Change;
pub use kind::Kind;
pub use numa::{NumaNode, NumaSource};
pub use path::{DevicePath, PathSegment};
pub use scan::Topology;
pub use snapshot::{DeviceView, Snapshot};
pub use socket::{Received, UeventSocket};
pub use uevent::{Uevent, UeventError};
