//! One claim in the ledger: its devices and the phase of its preparation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A claim and its devices. Unknown fields are kept in `extra` and written back.
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
    /// Opaque to the ledger: the data that the caller needs to finish, repeat or undo the preparation.
    #[serde(default)]
    pub payload: Value,
    /// The boot in which the entry was last written. Set by the ledger.
    #[serde(default)]
    pub boot_id: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The phase of a preparation. The claim holds its devices in every phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Device setup may have started: after a crash it is rolled back or finished.
    #[default]
    Started,
    /// The claim was, or may have been, reported as prepared.
    Completed,
    /// A phase of a newer version.
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
    /// Whether two claims cannot hold the same device at the same time. Admin access never excludes another claim, and
    /// different shares of one device do not exclude each other.
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

/// The key of a device on its host: the last part of its pool's name ("gpu" of "node-1/gpu"), and its own name. The
/// first part of the pool's name is the node's name, which may change while claims hold devices.
pub(crate) fn device_key(pool: &str, device: &str) -> (String, String) {
    let kind = pool.rsplit('/').next().unwrap_or(pool);
    (kind.to_owned(), device.to_owned())
}
