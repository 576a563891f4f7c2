//! The ledger itself: checks, records and makes durable, with one fdatasync for everyone who waits at the same time.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::disk::{Disk, FileSystem};
use crate::entry::{Entry, Phase};
use crate::error::{Error, Result};
use crate::journal::{
    COMPACT_NOW, COMPACT_SOON, Journal, SNAPSHOT, journal_name, journal_number, write_snapshot,
};
use crate::record::{Body, MAX_RECORD, Record};
use crate::recovery::{Recovered, Report, recover};
use crate::state::State;

/// Below the state directory, so that the files of the ledger are never mixed up with others.
const FOLDER: &str = "ledger";
const LOCK: &str = "lock";

/// Thread-safe; a process has one.
#[derive(Debug)]
pub struct Ledger {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    boot_id: String,
    books: Mutex<Books>,
    flushed: Condvar,
    /// Held while files are replaced. Taken before `books`, never the other way round.
    replacing: Mutex<()>,
    _lock: Box<dyn Debug + Send + Sync>,
}

#[derive(Debug)]
struct Books {
    /// What is on disk: all that is ever answered as done.
    durable: State,
    /// What will be on disk once `pending` is written: what a new claim is checked against.
    staged: State,
    pending: Vec<Record>,
    buffer: Vec<u8>,
    last_seq: u64,
    durable_seq: u64,
    journal: JournalState,
    last_journal: u64,
    /// No compaction before the journal has grown to this.
    compact_at: u64,
    waiting: usize,
    /// Numbers of the records that failed, for those who still wait for them.
    failed: Vec<(RangeInclusive<u64>, Error)>,
    /// Claims started without waiting whose record failed with somebody else's.
    lost_starts: BTreeMap<String, Error>,
    obsolete: Vec<(String, bool)>,
    report: Report,
}

#[derive(Debug)]
enum JournalState {
    Ready(Journal),
    /// A caller is writing to it, for everyone.
    Flushing,
    /// A write failed. Nobody knows what is on disk, so nothing is written there again.
    Broken(Error),
}

// === Opening ===

impl Ledger {
    /// Opens the ledger below `state_dir`, making it if it is not there.
    ///
    /// # Errors
    /// `Locked` if another process has it; `Io` if it cannot be read. Damage is no error: see [`Ledger::report`]. A disk
    /// that can be read and not written opens, reports `not_writable`, and refuses every change until it can.
    pub fn open(state_dir: &Path, boot_id: &str) -> Result<Self> {
        Self::open_on(Arc::new(FileSystem), state_dir, boot_id)
    }

    /// As [`Ledger::open`], on any disk.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_on(disk: Arc<dyn Disk>, state_dir: &Path, boot_id: &str) -> Result<Self> {
        let dir = state_dir.join(FOLDER);
        disk.create_dir(&dir)
            .map_err(|e| Error::io("create", &dir, &e))?;
        disk.sync_dir(state_dir)
            .map_err(|e| Error::io("sync", state_dir, &e))?;
        let lock = take_lock(disk.as_ref(), &dir)?;
        let Recovered {
            state,
            report,
            last_seq,
            last_journal,
            files,
        } = recover(disk.as_ref(), &dir, boot_id)?;
        let unread = Error::Usage("the ledger is being opened".into());
        let ledger = Self {
            disk,
            dir,
            boot_id: boot_id.to_owned(),
            books: Mutex::new(Books {
                durable: state.clone(),
                staged: state,
                pending: Vec::new(),
                buffer: Vec::new(),
                last_seq,
                durable_seq: last_seq,
                journal: JournalState::Broken(unread),
                last_journal,
                compact_at: COMPACT_SOON,
                waiting: 0,
                failed: Vec::new(),
                lost_starts: BTreeMap::new(),
                obsolete: files,
                report,
            }),
            flushed: Condvar::new(),
            replacing: Mutex::new(()),
            _lock: lock,
        };
        // What was read may be in the page cache only, after a crash between write and fdatasync or a failed fdatasync
        // whose error an earlier process took with it. Only writing all of it again makes it certain.
        if let Err(error) = ledger.mend() {
            ledger.books().report.not_writable = Some(error.to_string());
        }
        Ok(ledger)
    }

    /// What was found at opening, and whether the ledger can be written now.
    pub fn report(&self) -> Report {
        self.books().report.clone()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn Debug + Send + Sync>> {
    let path = dir.join(LOCK);
    disk.lock(&path).map_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Error::io("lock", &path, &error);
        }
        let holder = disk
            .read(&path)
            .ok()
            .and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok());
        Error::Locked {
            dir: dir.to_owned(),
            holder,
        }
    })
}

// === Reading ===

impl Ledger {
    /// The claim as it is on disk, or as started if no more than that is true yet.
    pub fn get(&self, uid: &str) -> Option<Arc<Entry>> {
        self.books().view(uid)
    }

    /// Every claim, ordered by uid.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        let books = self.books();
        let mut uids: Vec<&String> = books.staged.uids().chain(books.durable.uids()).collect();
        uids.sort_unstable();
        uids.dedup();
        uids.into_iter().filter_map(|uid| books.view(uid)).collect()
    }

    /// Every claim that names the device, shared and admin access included.
    pub fn holders(&self, pool: &str, device: &str) -> Vec<Arc<Entry>> {
        let books = self.books();
        let mut uids: Vec<&String> = books
            .durable
            .holders(pool, device)
            .chain(books.staged.holders(pool, device))
            .map(|held| &held.entry.uid)
            .collect();
        uids.sort_unstable();
        uids.dedup();
        uids.into_iter().filter_map(|uid| books.view(uid)).collect()
    }
}

impl Books {
    /// A completion is not shown before it is durable, and a release not either: an idempotent repeat would answer from
    /// it. A start claims nothing, so it may be shown at once.
    fn view(&self, uid: &str) -> Option<Arc<Entry>> {
        let durable = self.durable.get(uid);
        match self.staged.get(uid) {
            None => durable.map(|held| Arc::clone(&held.entry)),
            Some(staged)
                if staged.seq <= self.durable_seq || staged.entry.state == Phase::Started =>
            {
                Some(Arc::clone(&staged.entry))
            }
            Some(staged) => Some(durable.map_or_else(
                || {
                    Arc::new(Entry {
                        state: Phase::Started,
                        ..staged.entry.as_ref().clone()
                    })
                },
                |held| Arc::clone(&held.entry),
            )),
        }
    }
}

// === Changing ===

impl Ledger {
    /// Records that preparation of a claim begins, before anything is set up for it.
    ///
    /// With `durable` false the record waits for the next one, usually the claim's own completion, and shares its
    /// fdatasync; right when nothing outlives the process in between. Starting again replaces what was recorded.
    ///
    /// # Errors
    /// `Held` if another claim has one of the devices; `Usage`; `Io`, after which nothing has changed.
    pub fn start(&self, mut entry: Entry, durable: bool) -> Result<()> {
        if entry.uid.is_empty() {
            return Err(Error::Usage(
                "a claim without a uid cannot be recorded".into(),
            ));
        }
        entry.state = Phase::Started;
        entry.boot_id.clone_from(&self.boot_id);
        let mut books = self.writable()?;
        books.staged.check(&entry)?;
        if let Some(old) = books.staged.get(&entry.uid)
            && old.entry.state == Phase::Completed
            && old.entry.devices != entry.devices
        {
            return Err(Error::Usage(format!(
                "claim {}/{} (uid {}) is prepared with other devices; release it before it is prepared with new ones",
                entry.namespace, entry.name, entry.uid
            )));
        }
        books.lost_starts.remove(&entry.uid);
        let seq = books.stage(Body::Claim(Box::new(entry)))?;
        if durable {
            self.commit(books, seq)
        } else {
            Ok(())
        }
    }

    /// Records that a started claim is prepared; when this returns, the claim may be answered as prepared.
    ///
    /// # Errors
    /// `Usage` if the claim was not started; `Io`, after which the claim is as it was.
    pub fn complete(&self, uid: &str, payload: Value) -> Result<()> {
        let mut books = self.writable()?;
        let Some(held) = books.staged.get(uid) else {
            return Err(books.lost_starts.get(uid).cloned().unwrap_or_else(|| {
                Error::Usage(format!(
                    "claim {uid} cannot be completed: its preparation was never started"
                ))
            }));
        };
        let mut entry = held.entry.as_ref().clone();
        entry.state = Phase::Completed;
        entry.payload = payload;
        entry.boot_id.clone_from(&self.boot_id);
        let seq = books.stage(Body::Claim(Box::new(entry)))?;
        self.commit(books, seq)
    }

    /// Records that a claim holds nothing any more; false if it held nothing before.
    ///
    /// # Errors
    /// `Io`, after which the claim holds what it held.
    pub fn release(&self, uid: &str) -> Result<bool> {
        let mut books = self.books();
        if books.staged.get(uid).is_none() {
            if books.lost_starts.contains_key(uid) {
                // Its failed record may be on disk, and is certain to be ignored only after the repair.
                drop(books);
                books = self.writable()?;
                books.lost_starts.remove(uid);
            }
            if books.durable.get(uid).is_none() {
                return Ok(false);
            }
            // Somebody else's release is on its way to the disk.
            let seq = books.last_seq;
            return self.commit(books, seq).map(|()| true);
        }
        drop(books);
        let mut books = self.writable()?;
        if books.staged.get(uid).is_none() {
            drop(books);
            return self.release(uid);
        }
        let seq = books.stage(Body::Release {
            uid: uid.to_owned(),
        })?;
        self.commit(books, seq).map(|()| true)
    }
}

impl Books {
    fn stage(&mut self, body: Body) -> Result<u64> {
        let record = Record {
            seq: self.last_seq + 1,
            body,
        };
        let line = record.encode();
        // A record that cannot be read back, such as one nested too deep, must not be answered as safe.
        let readable = || crate::record::scan(&line).records.len() == 1;
        if line.len() > MAX_RECORD || !readable() {
            let size = line.len();
            return Err(Error::Usage(format!(
                "a record of {size} bytes cannot be kept: too large or nested too deep"
            )));
        }
        self.last_seq = record.seq;
        self.staged.apply(&record);
        self.buffer.extend(line);
        self.pending.push(record);
        Ok(self.last_seq)
    }

    fn failure_of(&self, seq: u64) -> Option<Error> {
        self.failed
            .iter()
            .find(|(range, _)| range.contains(&seq))
            .map(|(_, error)| error.clone())
    }
}

// === Durability ===

impl Ledger {
    /// Waits until record `seq` is on disk. Whoever comes first writes for all; the others wait for that.
    fn commit<'a>(&'a self, mut books: MutexGuard<'a, Books>, seq: u64) -> Result<()> {
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
        }
        let compact = matches!(&books.journal, JournalState::Ready(j) if j.end >= books.compact_at.max(COMPACT_NOW));
        drop(books);
        if compact && outcome.is_ok() {
            // The record is safe; a compaction that fails is tried again later.
            let _ = self.compact();
        }
        outcome
    }

    fn flush<'a>(
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
    fn writable(&self) -> Result<MutexGuard<'_, Books>> {
        loop {
            let books = self.books();
            if !matches!(books.journal, JournalState::Broken(_)) {
                return Ok(books);
            }
            drop(books);
            self.mend()?;
        }
    }

    fn mend(&self) -> Result<()> {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut books = self.books();
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
    fn keep_damaged_snapshot(
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
        if matches!(self.books().journal, JournalState::Broken(_)) {
            return self.mend();
        }
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let number = {
            let mut books = self.books();
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

    fn snapshot(&self, state: &State, seq: u64) -> Result<()> {
        write_snapshot(self.disk.as_ref(), &self.dir, state, seq)
    }

    /// Removes the journals before `number`, or sets them aside if they are damaged. What fails here is tried again at
    /// the next opening, and harms nothing until then.
    fn sweep(&self, damaged: &[(String, bool)], number: u64, set_aside: &mut Vec<String>) {
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
    fn give_up(&mut self, batch: Vec<Record>, error: Error) {
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

fn free_name(names: &[String], name: &str) -> String {
    let mut number = 1;
    loop {
        let aside = format!("{name}.corrupt-{number}");
        if !names.contains(&aside) {
            return aside;
        }
        number += 1;
    }
}
