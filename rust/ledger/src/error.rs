//! The errors of the ledger.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

/// Cloneable, because one failed disk write fails every claim that waits for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Another claim holds the device. Permanent until that claim is released.
    #[error(transparent)]
    Held(Box<Conflict>),

    /// A file operation failed. Nothing changed: the same call may succeed when the disk works again.
    #[error("cannot {action} {}: {message}; {}", path.display(), advice(*kind))]
    Io {
        action: &'static str,
        path: PathBuf,
        kind: io::ErrorKind,
        message: String,
    },

    /// Another process has the same ledger open.
    #[error("the ledger in {} is in use by another process{}; stop that process", dir.display(), holder_pid(holder))]
    Locked { dir: PathBuf, holder: Option<u32> },

    /// Another process holds the lease for longer than the timeout.
    #[error("the ledger in {} has been in use by another agent ({holder}) for {} s; try again, and check that agent if this persists", dir.display(), waited.as_secs())]
    Busy {
        dir: PathBuf,
        holder: String,
        waited: Duration,
    },

    /// A newer version wrote this file. Nothing was changed: the devices of its claims stay held.
    #[error("{} cannot be read by this version: {found}; run the version that wrote it", path.display())]
    Unsupported { path: PathBuf, found: String },

    /// The call is invalid in the current state, and a retry does not help.
    #[error("{0}")]
    Usage(String),
}

/// A claim that cannot hold a device, and the claim that holds it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device {device} of pool {pool} is held by claim {holder_namespace}/{holder_name} (uid {holder_uid}), \
     so claim {uid} cannot have it; release that claim first"
)]
pub struct Conflict {
    pub uid: String,
    pub pool: String,
    pub device: String,
    pub holder_uid: String,
    pub holder_namespace: String,
    pub holder_name: String,
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            kind: error.kind(),
            message: error.to_string(),
        }
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { kind, .. } if matches!(kind, StorageFull | QuotaExceeded))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::Io { kind, .. } if *kind == io::ErrorKind::ReadOnlyFilesystem)
    }
}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space on that file system and try again"
        }
        io::ErrorKind::ReadOnlyFilesystem => "make that file system writable and try again",
        io::ErrorKind::PermissionDenied => "give the agent's user access to it and try again",
        _ => "check the disk and try again",
    }
}

fn holder_pid(holder: &Option<u32>) -> String {
    holder
        .map(|pid| format!(" (pid {pid})"))
        .unwrap_or_default()
}
