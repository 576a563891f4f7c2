//! How records reach the disk: shared syncs, new files after a failure, compaction. What they mean is the parent's.

use super::{Books, JournalState, Ledger};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::{
    COMPACT_NOW, COMPACT_SOON, Journal, SNAPSHOT, journal_name, journal_number, write_snapshot,
};
use crate::record::{Body, Record};
use crate::state::State;
use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};

impl Ledger {
    /// Waits until record `seq` is on disk. Whoever comes first writes for all; the others wait for that.
    pub(super) fn commit<'a>(&'a self, mut books: MutexGuard<'a, Books>, seq: u64) -> Result<()> {
        books.waiting += 1;
        let outcome = loop {
            if let Some(error) = books.failure_of(seq) {
                break Err(error);
            }
            if books.durable_seq >= seq {
                break Ok(());
            }
            books = match std::mem::replace(&mut books.journal, JournalState::Flushing) {
                JournalState::Ready(journal) => self.flush(books, journal),
                JournalState::Flushing => self
                    .flushed
                    .wait(books)
                    .unwrap_or_else(PoisonError::into_inner),
                JournalState::Broken(error) => {
                    books.journal = JournalState::Broken(error.clone());
                    break Err(error);
                }
            };
        };
        books.waiting -= 1;
        if books.waiting == 0 {
            books.failed.clear();
            // For who gives the turn back.
            self.flushed.notify_all();
        }
        let compact = matches!(&books.journal, JournalState::Ready(j) if j.end >= books.compact_at.max(COMPACT_NOW));
        drop(books);
        if compact && outcome.is_ok() {
            // The record is safe; a compaction that fails is tried again later.
            let _ = self.compact();
        }
        outcome
    }

    pub(super) fn flush<'a>(
        &'a self,
        mut books: MutexGuard<'a, Books>,
        mut journal: Journal,
    ) -> MutexGuard<'a, Books> {
        let batch = std::mem::take(&mut books.pending);
        let bytes = std::mem::take(&mut books.buffer);
        let until = books.last_seq;
        drop(books);
        let written = journal.append(&bytes);
        let mut books = self.books();
        match written {
            Ok(()) => {
                batch.iter().for_each(|record| books.durable.apply(record));
                books.durable_seq = until;
                books.journal = JournalState::Ready(journal);
            }
            Err(error) => books.give_up(batch, error),
        }
        self.flushed.notify_all();
        books
    }

    /// The books, once they can be written: after a failure everything is put into new files first.
    pub(super) fn writable(&self) -> Result<MutexGuard<'_, Books>> {
        loop {
            let books = self.admitted(self.books())?;
            if !matches!(books.journal, JournalState::Broken(_)) {
                return Ok(books);
            }
            drop(books);
            self.mend()?;
        }
    }

    pub(super) fn mend(&self) -> Result<()> {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.replace_files(self.admitted(self.books())?)
    }

    /// Writes everything into new files after a failure; the caller holds `replacing`.
    pub(super) fn replace_files(&self, mut books: MutexGuard<'_, Books>) -> Result<()> {
        if !matches!(books.journal, JournalState::Broken(_)) {
            return Ok(());
        }
        let number = books.last_journal + 1;
        books.last_journal = number;
        // The failed records may be on disk. The snapshot says that it includes their numbers, so they are never read.
        let mut obsolete = std::mem::take(&mut books.obsolete);
        self.keep_damaged_snapshot(&mut obsolete, &mut books.report.set_aside);
        let made = Journal::create(self.disk.as_ref(), &self.dir, number).and_then(|journal| {
            self.snapshot(&books.durable, books.last_seq)
                .map(|()| journal)
        });
        match made {
            Ok(journal) => {
                books.journal = JournalState::Ready(journal);
                books.durable_seq = books.last_seq;
                books.compact_at = COMPACT_SOON;
                books.report.not_writable = None;
                self.sweep(&obsolete, number, &mut books.report.set_aside);
                Ok(())
            }
            Err(error) => {
                let _ = self.disk.remove(&self.dir.join(journal_name(number)));
                books.report.not_writable = Some(error.to_string());
                books.obsolete = obsolete;
                Err(error)
            }
        }
    }

    /// A second name for the damaged snapshot, because the new one takes its place in one step.
    pub(super) fn keep_damaged_snapshot(
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
        let aside = free_name(&self.disk.list(&self.dir).unwrap_or_default(), SNAPSHOT);
        if self
            .disk
            .link(&self.dir.join(SNAPSHOT), &self.dir.join(&aside))
            .is_ok()
        {
            set_aside.push(aside);
            damaged.remove(index);
        }
    }

    /// Whether [`Ledger::compact`] would be worth its while.
    pub fn compaction_due(&self) -> bool {
        let books = self.books();
        match &books.journal {
            JournalState::Ready(journal) => journal.end >= books.compact_at,
            JournalState::Flushing => false,
            JournalState::Broken(_) => true,
        }
    }

    /// Replaces the journals by a snapshot. Other threads go on recording meanwhile, into a new journal. After a failed
    /// write this is also a try to be writable again.
    ///
    /// # Errors
    /// `Io`, which loses nothing: the old files stay in force.
    pub fn compact(&self) -> Result<()> {
        let broken = matches!(
            self.admitted(self.books())?.journal,
            JournalState::Broken(_)
        );
        if broken {
            return self.mend();
        }
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let number = {
            // Once more: the turn may have been given back while this waited.
            let mut books = self.admitted(self.books())?;
            books.last_journal += 1;
            // Should it fail, the next try comes after as much again.
            if let JournalState::Ready(journal) = &books.journal {
                books.compact_at = journal.end + COMPACT_SOON;
            }
            books.last_journal
        };
        let journal = Journal::create(self.disk.as_ref(), &self.dir, number)?;
        let mut books = self.books();
        while matches!(books.journal, JournalState::Flushing) {
            books = self
                .flushed
                .wait(books)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if let JournalState::Broken(error) = &books.journal {
            let error = error.clone();
            let _ = self.disk.remove(&self.dir.join(journal_name(number)));
            return Err(error);
        }
        books.journal = JournalState::Ready(journal);
        let (state, seq) = (books.durable.clone(), books.durable_seq);
        drop(books);
        self.snapshot(&state, seq)?;
        self.sweep(&[], number, &mut Vec::new());
        self.books().compact_at = COMPACT_SOON;
        Ok(())
    }

    pub(super) fn snapshot(&self, state: &State, seq: u64) -> Result<()> {
        write_snapshot(self.disk.as_ref(), &self.dir, state, seq)
    }

    /// Removes the journals before `number`, or sets them aside if they are damaged. What fails here is tried again at
    /// the next opening, and harms nothing until then.
    pub(super) fn sweep(
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
                let aside = free_name(&names, name);
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

impl Books {
    pub(super) fn give_up(&mut self, batch: Vec<Record>, error: Error) {
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

pub(super) fn free_name(names: &[String], name: &str) -> String {
    let mut number = 1;
    loop {
        let aside = format!("{name}.corrupt-{number}");
        if !names.contains(&aside) {
            return aside;
        }
        number += 1;
    }
}

/// Creates `dir` and its parents. A name is durable once the directory that it is in was synced.
pub(super) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let created = match disk.create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && dir.parent().is_some() => {
            make_dir(disk, parent)?;
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
