//! What can go wrong with the ledger, and which of it is worth another try.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

/// Cloneable, because one failed disk write fails every claim that was waiting for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Another claim holds the device. It stays so until that claim is released.
    #[error(transparent)]
    Held(Box<Conflict>),

    /// The disk refused. Nothing changed: the same call may succeed once the disk does.
    #[error("cannot {action} {}: {message}; {}", path.display(), advice(*kind))]
    Io {
        action: &'static str,
        path: PathBuf,
        kind: io::ErrorKind,
        message: String,
    },

    /// Another process has the same ledger open.
    #[error("the ledger in {} is in use by another process{}; stop that process", dir.display(), by(holder))]
    Locked { dir: PathBuf, holder: Option<u32> },

    /// Another process has its turn, and does not give it back.
    #[error("the ledger in {} has been in use by another agent ({holder}) for {} s; try again, and look at that agent if it does not end", dir.display(), waited.as_secs())]
    Busy {
        dir: PathBuf,
        holder: String,
        waited: Duration,
    },

    /// A newer version wrote this. Nothing was changed: the devices of claims that are recorded there stay held.
    #[error("{} cannot be read by this version: {found}; run the version that wrote it", path.display())]
    Unsupported { path: PathBuf, found: String },

    /// The caller asked for something that makes no sense in any state.
    #[error("{0}")]
    Usage(String),
}

/// Who wanted a device, and who has it.
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

fn by(holder: &Option<u32>) -> String {
    holder
        .map(|pid| format!(" (pid {pid})"))
        .unwrap_or_default()
}
