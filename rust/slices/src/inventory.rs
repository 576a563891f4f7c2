//! Input and output: the devices of a node's pools, the slices to publish, and the devices that were left out.

use dra_api::{CounterSet, Device, OwnerReference, ResourceSlice};
use serde::{Deserialize, Serialize};

/// The input for the slices of one driver on one node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Inventory {
    pub driver: String,
    pub node: String,
    pub pools: Vec<PoolInput>,
    /// The published slices of the driver on this node.
    #[serde(default)]
    pub published: Vec<ResourceSlice>,
    #[serde(default)]
    pub naming: Naming,
    /// The owner of the slices. If it is the node, the slices are garbage-collected with it.
    #[serde(default)]
    pub owner: Option<OwnerReference>,
}

/// How the names of new slices are completed. In both cases they sort in the order in which the scheduler should read
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// The API server appends a random suffix to `generateName`.
    #[default]
    Generated,
    /// The name is complete, for use without an API server.
    Fixed,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PoolInput {
    pub name: String,
    #[serde(default)]
    pub devices: Vec<DeviceInput>,
    #[serde(default)]
    pub counter_sets: Vec<CounterSet>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceInput {
    #[serde(default)]
    pub order: Order,
    pub device: Device,
}

/// The location of a device. Neighbors are adjacent in the slices, because the scheduler takes the first device that
/// fits. Unknown locations are last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    #[serde(default)]
    pub numa_node: Option<u32>,
    #[serde(default)]
    pub pcie_switch: Option<String>,
    #[serde(default)]
    pub pci_address: Option<String>,
    /// The position among the devices of one address: partitions of a GPU that should be allocated first have a lower
    /// rank.
    #[serde(default)]
    pub rank: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    pub slices: Vec<ResourceSlice>,
    pub problems: Vec<Problem>,
}

/// A device or counter set that is not published, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    pub pool: String,
    /// Empty for a counter set.
    pub device: String,
    /// `attributes[uuid].string`; empty for the device as a whole.
    pub field: String,
    pub message: String,
}

/// The inventory as a whole cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    #[error("pool {0:?} is defined twice")]
    DuplicatePool(String),
}
