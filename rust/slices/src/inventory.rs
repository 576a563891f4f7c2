//! What comes in and what goes out: the devices of a node's pools, the slices to publish, and what was left out.

use dra_api::{CounterSet, Device, OwnerReference, ResourceSlice};
use serde::{Deserialize, Serialize};

/// Everything that the slices of one driver on one node are made of.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Inventory {
    pub driver: String,
    pub node: String,
    pub pools: Vec<PoolInput>,
    /// The driver's slices of this node as they are published now.
    #[serde(default)]
    pub published: Vec<ResourceSlice>,
    #[serde(default)]
    pub naming: Naming,
    /// Who owns the slices: with the node as their owner they vanish with it.
    #[serde(default)]
    pub owner: Option<OwnerReference>,
}

/// Who completes the names of new slices. Either way they sort as the scheduler is to walk them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// The API server appends a random suffix to `generateName`.
    #[default]
    Generated,
    /// The name is complete: there is no API server.
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

/// Where a device sits: neighbours go together, because the scheduler takes the first that fits. Unknown is last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    #[serde(default)]
    pub numa_node: Option<u32>,
    #[serde(default)]
    pub pcie_switch: Option<String>,
    #[serde(default)]
    pub pci_address: Option<String>,
    /// The place among the devices of one address: of a GPU's partitions those first that are to be taken first.
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
    /// Empty where a counter set is meant.
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
    #[error("pool {0:?} is there twice")]
    DuplicatePool(String),
}
