//! The ledger itself: checks, records and makes durable, with one fdatasync for everyone who waits at the same time.

mod durability;
mod turns;

use crate::disk::{Disk, FileSystem};
use crate::entry::{Entry, Phase};
use crate::error::{Error, Result};
use crate::journal::{COMPACT_SOON, Journal};
use crate::record::{Body, MAX_RECORD, Record};
use crate::recovery::{Recovered, Report, recover};
use crate::state::State;
use crate::turn::{Since, Turn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Below the state directory, so that the files of the ledger are never mixed up with others.
const FOLDER: &str = "ledger";
pub(crate) const LOCK: &str = "lock";

/// Thread-safe; a process has one. Several processes may have the same one open if all of them share it.
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
    /// None where no other process has the ledger.
    turn: Option<Turn>,
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
    /// Of a shared ledger: whether this process may change it now.
    place: turns::Place,
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
    /// `Locked` if another process has it; `Io` if it cannot be read; `Unsupported` if a newer version wrote it. Damage
    /// is no error: see [`Ledger::report`]. A disk that can be read and not written opens, reports `not_writable`, and
    /// refuses every change until it can.
    pub fn open(state_dir: &Path, boot_id: &str) -> Result<Self> {
        Self::open_on(Arc::new(FileSystem), state_dir, boot_id)
    }

    /// As [`Ledger::open`], on any disk.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_on(disk: Arc<dyn Disk>, state_dir: &Path, boot_id: &str) -> Result<Self> {
        Self::build(disk, state_dir, boot_id, None)
    }

    /// Opens a ledger that other processes may have open too, all of them in this way: see [`Ledger::take_turn`].
    /// `label` tells others which process this is; `wait` is how long it waits for its turn to read.
    ///
    /// # Errors
    /// As [`Ledger::open`]; also `Busy` if another process keeps its turn.
    pub fn open_shared(
        disk: Arc<dyn Disk>,
        state_dir: &Path,
        boot_id: &str,
        label: &str,
        wait: Duration,
    ) -> Result<Self> {
        Self::build(disk, state_dir, boot_id, Some((label, wait)))
    }

    fn build(
        disk: Arc<dyn Disk>,
        state_dir: &Path,
        boot_id: &str,
        share: Option<(&str, Duration)>,
    ) -> Result<Self> {
        let dir = state_dir.join(FOLDER);
        durability::make_dir(disk.as_ref(), &dir)?;
        match disk
            .sync_dir(state_dir)
            .map_err(|e| Error::io("sync", state_dir, &e))
        {
            Err(error) if !error.is_read_only() => return Err(error),
            _ => {}
        }
        let lock = turns::take_lock(disk.as_ref(), &dir, share.is_some())?;
        let turn = share
            .map(|(label, _)| Turn::new(disk.as_ref(), &dir, label))
            .transpose()?;
        let unread = Error::Usage("the ledger is not read yet".into());
        let ledger = Self {
            boot_id: boot_id.to_owned(),
            books: Mutex::new(Books::new(
                Recovered::default(),
                JournalState::Broken(unread),
            )),
            flushed: Condvar::new(),
            replacing: Mutex::new(()),
            _lock: lock,
            turn,
            disk,
            dir,
        };
        match ledger.turn.as_ref().zip(share) {
            None => ledger.read_all(None)?,
            Some((turn, (_, wait))) => {
                let (since, _) = turn.enter(wait)?;
                let read = ledger.read_all(Some(turn));
                if let JournalState::Ready(journal) = &ledger.books().journal
                    && since == Since::Turns
                {
                    // Failing to say so only makes others look more closely.
                    let _ = turn.settle(journal.number);
                }
                turn.leave();
                read?;
            }
        }
        Ok(ledger)
    }

    fn read_all(&self, turn: Option<&Turn>) -> Result<()> {
        let found = recover(self.disk.as_ref(), &self.dir, &self.boot_id)?;
        let read_only = turn.map_or(Ok(None), turns::declare)?;
        let unwritten = Error::Usage("the ledger is being opened".into());
        *self.books() = Books::new(found, JournalState::Broken(unwritten));
        match read_only {
            None => self.write_anew(),
            Some(error) => self.books().report.not_writable = Some(error.to_string()),
        }
        Ok(())
    }

    /// What was read may be in the page cache only, after a crash between write and fdatasync or a failed fdatasync
    /// whose error an earlier process took with it. Only writing all of it again makes it certain.
    fn write_anew(&self) {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A failure stands in the report.
        let _ = self.replace_files(self.books());
    }

    /// What was found at opening, and whether the ledger can be written now.
    pub fn report(&self) -> Report {
        self.books().report.clone()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    /// Every claim that names the device, shared and admin access included. What node the pool is named after does not count.
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
    fn new(found: Recovered, journal: JournalState) -> Self {
        Self {
            durable: found.state.clone(),
            staged: found.state,
            pending: Vec::new(),
            buffer: Vec::new(),
            last_seq: found.last_seq,
            durable_seq: found.last_seq,
            journal,
            last_journal: found.last_journal,
            compact_at: COMPACT_SOON,
            waiting: 0,
            failed: Vec::new(),
            lost_starts: BTreeMap::new(),
            obsolete: found.files,
            report: found.report,
            place: turns::Place::Outside,
        }
    }

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
        let mut books = self.admitted(self.books())?;
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
