//! Room on a full disk: whatever was recorded can be released, also after a restart.
//!
//! A journal keeps space for one release of each claim. A reserve file keeps space for the new files that replace a
//! journal which cannot be continued: on a full disk it is emptied for them. A claim is refused unless both remain.

use std::io;
use std::sync::PoisonError;

use super::{Inner, JournalState, Ledger};
use crate::error::{Error, Result};
use crate::journal::{Journal, PREALLOCATED_BYTES};
use crate::record::{Body, Record, release_bytes};

pub(crate) const RESERVE_FILE: &str = "reserve";

const BLOCK_BYTES: u64 = 4096;
/// The free space of a journal on a full disk: for its first line.
pub(super) const FULL_DISK_JOURNAL_BYTES: u64 = BLOCK_BYTES;
/// New files take whole blocks, and their names may take one.
const OVERHEAD_BYTES: u64 = 8 * BLOCK_BYTES;

/// The size of the reserve for new files with the content of files of `bytes` bytes.
pub(super) fn reserve_for(bytes: u64) -> u64 {
    (bytes + OVERHEAD_BYTES).next_multiple_of(BLOCK_BYTES)
}

impl Inner {
    /// The bytes of the journal that a claim needs: for its record, and for its release if it is new.
    pub(super) fn bytes_needed(&self, record: &Record, line: &[u8]) -> u64 {
        let release = match &record.body {
            Body::Claim(entry) if self.staged.get(&entry.uid).is_none() => {
                release_bytes(&entry.uid)
            }
            _ => 0,
        };
        line.len() as u64 + release
    }

    pub(super) fn has_room(&self, needed: u64) -> bool {
        self.has_reserve() && self.has_room_in_journal(needed)
    }

    fn has_room_in_journal(&self, needed: u64) -> bool {
        self.staged_end + needed + self.staged.release_bytes() <= self.allocated
    }

    pub(super) fn has_reserve(&self) -> bool {
        self.reserved >= self.reserve_wanted
    }

    /// The size of a new journal with `free` bytes besides the records that wait and one release of each claim.
    pub(super) fn journal_bytes(&self, free: u64) -> u64 {
        let known = self.buffer.len() as u64 + self.staged.release_bytes();
        free + known.next_multiple_of(BLOCK_BYTES)
    }

    pub(super) fn use_journal(&mut self, journal: Journal) {
        self.staged_end = journal.end + self.buffer.len() as u64;
        self.allocated = journal.allocated;
        self.journal = JournalState::Ready(journal);
    }
}

impl Ledger {
    /// Makes [`Inner::has_room`] true, if the disk has the space and the journal is not broken.
    pub(super) fn make_room(&self, needed: u64) -> Result<()> {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Another thread may have made room, or failed to write, while this one waited.
        let has_room = {
            let inner = self.checked_lease(self.inner())?;
            if matches!(inner.journal, JournalState::Broken(_)) {
                return Ok(());
            }
            inner.has_room_in_journal(needed)
        };
        if !has_room {
            let free = PREALLOCATED_BYTES + needed.next_multiple_of(BLOCK_BYTES);
            self.replace_journal(free)
                .inspect_err(|error| self.inner().report.not_writable = Some(error.to_string()))?;
        }
        self.fill_reserve()
    }

    /// Allocates what is missing of the reserve. The caller holds `replacing`.
    pub(super) fn fill_reserve(&self) -> Result<()> {
        let wanted = {
            let inner = self.inner();
            if inner.has_reserve() {
                return Ok(());
            }
            inner.reserve_wanted
        };
        let allocated = self.allocate_reserve(wanted);
        let mut inner = self.inner();
        match &allocated {
            Ok(()) => inner.reserved = wanted,
            Err(error) => inner.report.not_writable = Some(error.to_string()),
        }
        allocated
    }

    fn allocate_reserve(&self, bytes: u64) -> Result<()> {
        const ACTION: &str = "reserve space for releases in";
        let path = self.dir.join(RESERVE_FILE);
        let io = |error: io::Error| Error::io(ACTION, &path, &error);
        let mut file = match self.disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = self.disk.create(&path).map_err(io)?;
                self.disk.sync_dir(&self.dir).map_err(io)?;
                file
            }
            opened => opened.map_err(io)?,
        };
        file.allocate(bytes).and_then(|()| file.sync()).map_err(io)
    }

    /// Frees the space of the reserve. A failure shows in the writes that follow.
    pub(super) fn empty_reserve(&self, inner: &mut Inner) {
        inner.reserved = 0;
        let _ = self.disk.create(&self.dir.join(RESERVE_FILE));
    }

    /// The size of the reserve on disk.
    pub(super) fn reserved(&self) -> u64 {
        self.disk.size(&self.dir.join(RESERVE_FILE)).unwrap_or(0)
    }
}
