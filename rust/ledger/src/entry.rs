//! One claim in the ledger: what it holds and how far its preparation came.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A claim and its devices. Fields that this version does not know are kept in `extra` and written back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub uid: String,
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub state: Phase,
    #[serde(default)]
    pub devices: Vec<HeldDevice>,
    /// Opaque to the ledger: what the caller needs to finish, repeat or undo the preparation.
    #[serde(default)]
    pub payload: Value,
    /// The boot in which the entry was last written. Set by the ledger.
    #[serde(default)]
    pub boot_id: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How far a preparation came. Any phase holds the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Vendor set-up may have begun: after a crash it is rolled back or finished.
    #[default]
    Started,
    /// The claim was, or may have been, answered as prepared.
    Completed,
    /// A phase that a newer version knows.
    #[serde(untagged)]
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldDevice {
    pub pool: String,
    pub device: String,
    #[serde(default)]
    pub request: String,
    #[serde(default)]
    pub share_id: Option<String>,
    #[serde(default)]
    pub admin_access: bool,
    #[serde(default)]
    pub shared: bool,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl HeldDevice {
    /// Whether two holders of the same device exclude each other: admin access watches without holding, and shares of
    /// one device live side by side as long as they are different shares.
    pub fn excludes(&self, other: &Self) -> bool {
        if self.admin_access || other.admin_access {
            return false;
        }
        match (&self.share_id, &other.share_id) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        }
    }

    pub(crate) fn same_device(&self, other: &Self) -> bool {
        self.key() == other.key()
    }

    pub(crate) fn key(&self) -> (String, String) {
        device_key(&self.pool, &self.device)
    }
}

/// What names a device on its host: what kind its pool is of ("gpu" of "node-1/gpu"), and its name. The pool's first part
/// is the node, whose name may change while claims hold devices.
pub(crate) fn device_key(pool: &str, device: &str) -> (String, String) {
    let kind = pool.rsplit('/').next().unwrap_or(pool);
    (kind.to_owned(), device.to_owned())
}
