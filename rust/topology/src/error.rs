//! Errors that end a scan, and problems of single devices.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;

/// The scan failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TopologyError {
    #[error("{path}: cannot open this as sysfs: {reason}", path = .path.display(), reason = describe(*.source))]
    Open { path: PathBuf, source: Errno },
    #[error("{path}: not a sysfs: it holds neither bus/ nor devices/", path = .path.display())]
    NotSysfs { path: PathBuf },
    #[error("{path}: cannot be listed: {reason}", path = .path.display(), reason = describe(*.source))]
    List { path: PathBuf, source: Errno },
}

/// A problem of one device or file. It is reported, and the scan continues.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The device, and the file below it where there is one: `0000:5f:00.0/class`.
    #[serde(rename = "where")]
    pub location: String,
    #[serde(rename = "what")]
    pub message: String,
}

impl Problem {
    pub(crate) fn new(location: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            location: location.into(),
            message: message.into(),
        }
    }
}

/// Returns the text of an errno, without "(os error N)".
pub(crate) fn describe(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
