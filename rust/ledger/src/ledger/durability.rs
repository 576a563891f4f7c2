//! How records reach the disk: shared syncs, new files after a failure, compaction. The parent module interprets them.

use super::reserve::{FULL_DISK_JOURNAL_BYTES, reserve_for};
use super::{Inner, JournalState, Ledger};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::{
    COMPACT_BYTES, COMPACT_WHEN_IDLE_BYTES, Journal, PREALLOCATED_BYTES, SNAPSHOT, journal_name,
    journal_number, write_snapshot,
};
use crate::record::{Body, Record};
use crate::state::State;
use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

impl Ledger {
    /// Waits until record `seq` is on disk. The first caller writes the records of all; the others wait for it.
    pub(super) fn commit<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, seq: u64) -> Result<()> {
        inner.waiters += 1;
        let outcome = loop {
            if let Some(error) = inner.failure_of(seq) {
                break Err(error);
            }
            if inner.durable_seq >= seq {
                break Ok(());
            }
            inner = match std::mem::replace(&mut inner.journal, JournalState::Flushing) {
                JournalState::Ready(journal) => self.flush(inner, journal),
                JournalState::Flushing => self
                    .flushed
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner),
                JournalState::Broken(error) => {
                    inner.journal = JournalState::Broken(error.clone());
                    break Err(error);
                }
            };
        };
        inner.waiters -= 1;
        if inner.waiters == 0 {
            inner.failed.clear();
            // Wakes the thread that releases the lease.
            self.flushed.notify_all();
        }
        let compact = matches!(&inner.journal, JournalState::Ready(j) if j.end >= inner.compact_at.max(COMPACT_BYTES));
        drop(inner);
        if compact && outcome.is_ok() {
            // The record is durable. A failed compaction is retried later.
            let _ = self.compact();
        }
        outcome
    }

    pub(super) fn flush<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        mut journal: Journal,
    ) -> MutexGuard<'a, Inner> {
        let batch = std::mem::take(&mut inner.pending);
        let bytes = std::mem::take(&mut inner.buffer);
        let last_seq = inner.last_seq;
        drop(inner);
        let written = journal.append(&bytes);
        let mut inner = self.inner();
        match written {
            Ok(()) => {
                batch.iter().for_each(|record| inner.durable.apply(record));
                inner.durable_seq = last_seq;
                inner.journal = JournalState::Ready(journal);
            }
            Err(error) => inner.fail_batch(batch, error),
        }
        self.flushed.notify_all();
        inner
    }

    /// Returns the state when the journal can be written. After a failure, everything is first written to new files.
    pub(super) fn writable(&self) -> Result<MutexGuard<'_, Inner>> {
        loop {
            let inner = self.checked_lease(self.inner())?;
            if !matches!(inner.journal, JournalState::Broken(_)) {
                return Ok(inner);
            }
            drop(inner);
            self.repair()?;
        }
    }

    pub(super) fn repair(&self) -> Result<()> {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.replace_files(self.checked_lease(self.inner())?)
    }

    /// Writes everything into new files after a failure; the caller holds `replacing`.
    pub(super) fn replace_files(&self, mut inner: MutexGuard<'_, Inner>) -> Result<()> {
        if !matches!(inner.journal, JournalState::Broken(_)) {
            return Ok(());
        }
        let number = inner.last_journal + 1;
        inner.last_journal = number;
        // The failed records may be on disk. The snapshot claims to include their numbers, so they are never read.
        let mut obsolete = std::mem::take(&mut inner.obsolete);
        self.preserve_damaged_snapshot(&mut obsolete, &mut inner.report.set_aside);
        let create = |inner: &Inner, free| {
            let capacity = inner.journal_bytes(free);
            let journal = Journal::create(self.disk.as_ref(), &self.dir, number, capacity)?;
            let snapshot = self.snapshot(&inner.durable, inner.last_seq)?;
            Ok((journal, snapshot))
        };
        let made = create(&inner, PREALLOCATED_BYTES).or_else(|error: Error| {
            if !error.is_disk_full() {
                return Err(error);
            }
            self.empty_reserve(&mut inner);
            create(&inner, FULL_DISK_JOURNAL_BYTES)
        });
        match made {
            Ok((journal, snapshot)) => {
                inner.reserve_wanted = reserve_for(snapshot + journal.allocated);
                inner.use_journal(journal);
                inner.durable_seq = inner.last_seq;
                inner.compact_at = COMPACT_WHEN_IDLE_BYTES;
                inner.report.not_writable = None;
                self.remove_old_journals(&obsolete, number, &mut inner.report.set_aside);
                drop(inner);
                // Without it, claims can be released. The next claim tries again.
                let _ = self.fill_reserve();
                Ok(())
            }
            Err(error) => {
                let _ = self.disk.remove(&self.dir.join(journal_name(number)));
                inner.report.not_writable = Some(error.to_string());
                inner.obsolete = obsolete;
                Err(error)
            }
        }
    }

    /// Links the damaged snapshot to a second name, because the rename of the new one replaces it atomically.
    pub(super) fn preserve_damaged_snapshot(
        &self,
        damaged: &mut Vec<(String, bool)>,
        set_aside: &mut Vec<String>,
    ) {
        let Some(index) = damaged
            .iter()
            .position(|(file, keep)| file == SNAPSHOT && *keep)
        else {
            return;
        };
        let aside = unused_name(&self.disk.list(&self.dir).unwrap_or_default(), SNAPSHOT);
        if self
            .disk
            .link(&self.dir.join(SNAPSHOT), &self.dir.join(&aside))
            .is_ok()
        {
            set_aside.push(aside);
            damaged.remove(index);
        }
    }

    /// Whether the journal is large enough for [`Ledger::compact`], or the ledger cannot record claims.
    pub fn compaction_due(&self) -> bool {
        let inner = self.inner();
        match &inner.journal {
            JournalState::Ready(journal) => {
                journal.end >= inner.compact_at || inner.report.not_writable.is_some()
            }
            JournalState::Flushing => false,
            JournalState::Broken(_) => true,
        }
    }

    /// Replaces the journals with a snapshot. Other threads continue to record, into a new journal. After a failed
    /// write it tries to make the ledger writable again.
    ///
    /// # Errors
    /// `Io`, which loses nothing: the old files stay valid.
    pub fn compact(&self) -> Result<()> {
        let broken = matches!(
            self.checked_lease(self.inner())?.journal,
            JournalState::Broken(_)
        );
        if broken {
            return self.repair();
        }
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.fill_reserve()?;
        self.replace_journal(PREALLOCATED_BYTES)?;
        self.fill_reserve()?;
        self.inner().report.not_writable = None;
        Ok(())
    }

    /// Continues in a new journal with `free` bytes and replaces the older ones with a snapshot. The caller holds
    /// `replacing`.
    pub(super) fn replace_journal(&self, free: u64) -> Result<()> {
        let (number, capacity) = {
            // Checked again: the lease may have been released while this thread waited.
            let mut inner = self.checked_lease(self.inner())?;
            inner.last_journal += 1;
            // If this compaction fails, the next one is due after the journal has grown by the same amount.
            if let JournalState::Ready(journal) = &inner.journal {
                inner.compact_at = journal.end + COMPACT_WHEN_IDLE_BYTES;
            }
            (inner.last_journal, inner.journal_bytes(free))
        };
        let journal = Journal::create(self.disk.as_ref(), &self.dir, number, capacity)?;
        let mut inner = self.inner();
        while matches!(inner.journal, JournalState::Flushing) {
            inner = self
                .flushed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if let JournalState::Broken(error) = &inner.journal {
            let error = error.clone();
            let _ = self.disk.remove(&self.dir.join(journal_name(number)));
            return Err(error);
        }
        let allocated = journal.allocated;
        inner.use_journal(journal);
        // Until the snapshot exists, new files have the content of this journal too.
        inner.reserve_wanted += allocated;
        let (state, seq) = (inner.durable.clone(), inner.durable_seq);
        drop(inner);
        let snapshot = self.snapshot(&state, seq)?;
        self.remove_old_journals(&[], number, &mut Vec::new());
        let mut inner = self.inner();
        inner.reserve_wanted = reserve_for(snapshot + allocated);
        inner.compact_at = COMPACT_WHEN_IDLE_BYTES;
        Ok(())
    }

    fn snapshot(&self, state: &State, seq: u64) -> Result<u64> {
        write_snapshot(self.disk.as_ref(), &self.dir, state, seq)
    }

    /// Removes the journals before `number`, or sets them aside if they are damaged. A failure is harmless: the next
    /// opening tries again.
    pub(super) fn remove_old_journals(
        &self,
        damaged: &[(String, bool)],
        number: u64,
        set_aside: &mut Vec<String>,
    ) {
        let Ok(names) = self.disk.list(&self.dir) else {
            return;
        };
        for name in &names {
            let path = self.dir.join(name);
            let keep = damaged.iter().any(|(file, keep)| file == name && *keep);
            let older =
                journal_number(name).is_some_and(|n| n < number && journal_name(n) == *name);
            if keep && older {
                let aside = unused_name(&names, name);
                if self.disk.rename(&path, &self.dir.join(&aside)).is_ok() {
                    set_aside.push(aside);
                }
            } else if older {
                let _ = self.disk.remove(&path);
            }
        }
        let _ = self.disk.sync_dir(&self.dir);
    }
}

impl Inner {
    pub(super) fn fail_batch(&mut self, batch: Vec<Record>, error: Error) {
        for record in batch.into_iter().chain(self.pending.drain(..)) {
            if let Body::Claim(entry) = &record.body {
                self.lost_starts.insert(entry.uid.clone(), error.clone());
            }
        }
        self.buffer.clear();
        self.staged = self.durable.clone();
        self.failed
            .push((self.durable_seq + 1..=self.last_seq, error.clone()));
        self.report.not_writable = Some(error.to_string());
        self.journal = JournalState::Broken(error);
    }
}

pub(super) fn unused_name(names: &[String], name: &str) -> String {
    let mut number = 1;
    loop {
        let aside = format!("{name}.corrupt-{number}");
        if !names.contains(&aside) {
            return aside;
        }
        number += 1;
    }
}

/// Creates `dir` and its parents. A name is durable after a sync of the directory that contains it.
pub(super) fn create_dir_durably(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let created = match disk.create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && dir.parent().is_some() => {
            create_dir_durably(disk, parent)?;
            disk.create_dir(dir)
        }
        created => created,
    };
    if created.map_err(|e| Error::io("create", dir, &e))? {
        disk.sync_dir(parent)
            .map_err(|e| Error::io("sync", parent, &e))?;
    }
    Ok(())
}
