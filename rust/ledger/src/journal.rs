//! The two kinds of file on disk: numbered journals that are appended to, and the snapshot that replaces old ones.

use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::record::{Body, Mark, Record};
use crate::state::State;

pub(crate) const SNAPSHOT: &str = "snapshot";
pub(crate) const SNAPSHOT_PART: &str = "snapshot.part";

/// Bytes that a new journal sets aside. Writing into blocks that the file already owns spares each fdatasync the file
/// system's own journal, and lets claims be released for a while after the disk is full.
pub(crate) const SET_ASIDE: u64 = 256 * 1024;
/// Past this, compaction is due when the agent has a quiet moment ...
pub(crate) const COMPACT_SOON: u64 = SET_ASIDE / 2;
/// ... and past this the caller whose record crossed it does it.
pub(crate) const COMPACT_NOW: u64 = SET_ASIDE - SET_ASIDE / 8;

#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    pub(crate) number: u64,
    pub(crate) end: u64,
}

pub(crate) fn journal_name(number: u64) -> String {
    format!("journal-{number:08}")
}

pub(crate) fn journal_number(name: &str) -> Option<u64> {
    name.strip_prefix("journal-")?.parse().ok()
}

impl Journal {
    /// A new, empty and durable journal.
    pub(crate) fn create(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Self> {
        let path = dir.join(journal_name(number));
        let made = Self::fill(disk, &path, dir, number);
        made.inspect_err(|_| {
            // Half a journal holds nothing; a next try has a new number.
            let _ = disk.remove(&path);
        })
    }

    /// The journal that another process has written, to go on after its last record at `end`.
    pub(crate) fn go_on(disk: &dyn Disk, dir: &Path, number: u64, end: u64) -> Result<Self> {
        let path = dir.join(journal_name(number));
        let file = disk.open(&path).map_err(|e| Error::io("open", &path, &e))?;
        Ok(Self {
            file,
            path,
            number,
            end,
        })
    }

    fn fill(disk: &dyn Disk, path: &Path, dir: &Path, number: u64) -> Result<Self> {
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
        let mut bytes = vec![0; SET_ASIDE as usize];
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
        })
    }

    /// Appends and makes durable. After an error the journal must be dropped: what is on disk is unknown.
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

/// Puts `state` in the place of the snapshot; `seq` is the newest record that it includes.
pub(crate) fn write_snapshot(disk: &dyn Disk, dir: &Path, state: &State, seq: u64) -> Result<()> {
    let part = dir.join(SNAPSHOT_PART);
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
    // Said twice, so that no single damaged byte can hide where the snapshot ends.
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
    disk.sync_dir(dir).map_err(|e| Error::io("sync", dir, &e))
}
