//! The two types of files on disk: numbered journals, which are appended to, and the snapshot, which replaces old
//! journals.

use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::record::{Body, Mark, Record};
use crate::state::State;

pub(crate) const SNAPSHOT: &str = "snapshot";
pub(crate) const SNAPSHOT_TEMP: &str = "snapshot.part";

/// The preallocated size of a new journal. A write into allocated blocks avoids a commit of the file system's own
/// journal in each fdatasync, and needs no space on a full disk.
pub(crate) const PREALLOCATED_BYTES: u64 = 256 * 1024;
/// The journal size from which an idle agent compacts.
pub(crate) const COMPACT_WHEN_IDLE_BYTES: u64 = PREALLOCATED_BYTES / 2;
/// The journal size from which the caller that exceeds it compacts.
pub(crate) const COMPACT_BYTES: u64 = PREALLOCATED_BYTES - PREALLOCATED_BYTES / 8;

#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    pub(crate) number: u64,
    pub(crate) end: u64,
    /// The length of the file: the space that records can use on a full disk.
    pub(crate) allocated: u64,
}

pub(crate) fn journal_name(number: u64) -> String {
    format!("journal-{number:08}")
}

pub(crate) fn journal_number(name: &str) -> Option<u64> {
    name.strip_prefix("journal-")?.parse().ok()
}

impl Journal {
    /// Creates a durable journal without records, with space for `capacity` bytes.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, number: u64, capacity: u64) -> Result<Self> {
        let path = dir.join(journal_name(number));
        let created = Self::initialize(disk, &path, dir, number, capacity);
        created.inspect_err(|_| {
            // An incomplete journal has no records, and a retry uses a new number.
            let _ = disk.remove(&path);
        })
    }

    /// Opens a journal that another process has written, to append after its last record, which ends at offset `end`.
    pub(crate) fn resume(
        disk: &dyn Disk,
        dir: &Path,
        number: u64,
        end: u64,
        allocated: u64,
    ) -> Result<Self> {
        let path = dir.join(journal_name(number));
        let file = disk.open(&path).map_err(|e| Error::io("open", &path, &e))?;
        Ok(Self {
            file,
            path,
            number,
            end,
            allocated,
        })
    }

    fn initialize(
        disk: &dyn Disk,
        path: &Path,
        dir: &Path,
        number: u64,
        capacity: u64,
    ) -> Result<Self> {
        let mut file = disk
            .create(path)
            .map_err(|e| Error::io("create", path, &e))?;
        let header = Record {
            seq: 0,
            body: Body::Mark {
                kind: Mark::Journal,
            },
        }
        .encode();
        let mut bytes = vec![0; header.len().max(capacity as usize)];
        bytes[..header.len()].copy_from_slice(&header);
        file.write_at(&bytes, 0)
            .map_err(|e| Error::io("write", path, &e))?;
        file.sync().map_err(|e| Error::io("sync", path, &e))?;
        disk.sync_dir(dir).map_err(|e| Error::io("sync", dir, &e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            number,
            end: header.len() as u64,
            allocated: bytes.len() as u64,
        })
    }

    /// Appends and syncs. After an error the journal must be dropped: the state on disk is unknown.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_at(bytes, self.end)
            .map_err(|e| Error::io("write", &self.path, &e))?;
        self.file
            .sync()
            .map_err(|e| Error::io("sync", &self.path, &e))?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Replaces the snapshot with `state`; `seq` is the newest record that it includes. Returns its size in bytes.
pub(crate) fn write_snapshot(disk: &dyn Disk, dir: &Path, state: &State, seq: u64) -> Result<u64> {
    let part = dir.join(SNAPSHOT_TEMP);
    let mut bytes = Record {
        seq,
        body: Body::Mark {
            kind: Mark::Snapshot,
        },
    }
    .encode();
    for record in state.records() {
        bytes.extend(record.encode());
    }
    // `seq` is written twice, so that one damaged byte cannot hide which records the snapshot includes.
    bytes.extend(
        Record {
            seq,
            body: Body::Mark { kind: Mark::End },
        }
        .encode(),
    );
    let written = disk
        .create(&part)
        .map_err(|e| Error::io("create", &part, &e))
        .and_then(|mut file| {
            file.write_at(&bytes, 0)
                .map_err(|e| Error::io("write", &part, &e))?;
            file.sync().map_err(|e| Error::io("sync", &part, &e))
        })
        .and_then(|()| {
            disk.rename(&part, &dir.join(SNAPSHOT))
                .map_err(|e| Error::io("rename", &part, &e))
        });
    if let Err(error) = written {
        let _ = disk.remove(&part);
        return Err(error);
    }
    disk.sync_dir(dir).map_err(|e| Error::io("sync", dir, &e))?;
    Ok(bytes.len() as u64)
}
