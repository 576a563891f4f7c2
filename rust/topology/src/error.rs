//! What ends a scan, and what only costs it one device.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;

/// The scan as a whole could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TopologyError {
    #[error("{path}: cannot open this as sysfs: {what}", path = .path.display(), what = describe(*.source))]
    Open { path: PathBuf, source: Errno },
    #[error("{path}: not a sysfs: it holds neither bus/ nor devices/", path = .path.display())]
    NotSysfs { path: PathBuf },
    #[error("{path}: cannot be listed: {what}", path = .path.display(), what = describe(*.source))]
    List { path: PathBuf, source: Errno },
}

/// Something about one device or file that was found wrong, reported and passed over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The device, and the file below it where there is one: `0000:5f:00.0/class`.
    #[serde(rename = "where")]
    pub place: String,
    pub what: String,
}

impl Problem {
    pub(crate) fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}

/// An errno in words, without the "(os error N)" that tells an operator nothing.
pub(crate) fn describe(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
