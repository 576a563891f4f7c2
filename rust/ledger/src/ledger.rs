//! The ledger: checks claims and records them durably. Concurrent callers share one fdatasync.

mod durability;
mod lease;
mod reserve;

use crate::disk::{Disk, FileSystem};
use crate::entry::{Entry, Phase};
use crate::error::{Error, Result};
use crate::journal::{COMPACT_WHEN_IDLE_BYTES, Journal};
use crate::lease::{Lease, LeaseHistory};
use crate::record::{Body, MAX_RECORD_BYTES, Record};
use crate::recovery::{Recovered, Report, recover};
use crate::state::State;
use reserve::reserve_for;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A directory below the state directory, so that the ledger's files are separate from all others.
const LEDGER_DIR: &str = "ledger";
pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) use reserve::RESERVE_FILE;

/// Thread-safe; a process opens a ledger once. Several processes may open the same one with [`Ledger::open_shared`].
#[derive(Debug)]
pub struct Ledger {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    boot_id: String,
    inner: Mutex<Inner>,
    flushed: Condvar,
    /// Held while files are replaced. Locked before `inner`, never after it.
    replacing: Mutex<()>,
    _lock: Box<dyn Debug + Send + Sync>,
    /// `None` if the ledger is not shared.
    lease: Option<Lease>,
}

#[derive(Debug)]
struct Inner {
    /// The state on disk. Only this is ever reported as done.
    durable: State,
    /// The state on disk after `pending` is written. New claims are checked against it.
    staged: State,
    pending: Vec<Record>,
    buffer: Vec<u8>,
    last_seq: u64,
    durable_seq: u64,
    journal: JournalState,
    /// The offset in the journal at which the records of `buffer` will end.
    staged_end: u64,
    /// The allocated space of the journal.
    allocated: u64,
    /// The size of the reserve, and the size that it needs for the next new files.
    reserved: u64,
    reserve_wanted: u64,
    last_journal: u64,
    /// The size of the journal in bytes from which compaction is due.
    compact_at: u64,
    waiters: usize,
    /// Sequence numbers of the records whose write failed, for the callers that still wait for them.
    failed: Vec<(RangeInclusive<u64>, Error)>,
    /// Claims started without `durable` whose record failed together with that of another caller.
    lost_starts: BTreeMap<String, Error>,
    obsolete: Vec<(String, bool)>,
    report: Report,
    /// Of a shared ledger; unused otherwise.
    lease_state: lease::LeaseState,
}

#[derive(Debug)]
enum JournalState {
    Ready(Journal),
    /// A caller is writing all pending records to it.
    Flushing,
    /// A write failed. The state on disk is unknown, so this journal is never written again.
    Broken(Error),
}

// === Opening ===

impl Ledger {
    /// Opens the ledger below `state_dir`, and creates it if it does not exist.
    ///
    /// # Errors
    /// `Locked` if another process uses it; `Io` if it cannot be read; `Unsupported` if a newer version wrote it.
    /// Damage is not an error: see [`Ledger::report`]. A ledger that can be read but not written is opened and reports
    /// `not_writable`; every change fails until it can be written.
    pub fn open(state_dir: &Path, boot_id: &str) -> Result<Self> {
        Self::open_on(Arc::new(FileSystem), state_dir, boot_id)
    }

    /// Like [`Ledger::open`], on any [`Disk`].
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_on(disk: Arc<dyn Disk>, state_dir: &Path, boot_id: &str) -> Result<Self> {
        Self::build(disk, state_dir, boot_id, None)
    }

    /// Opens a ledger that other processes may open too, all of them with this function: see [`Ledger::acquire_lease`].
    /// `label` names this process in messages of other processes. `timeout` limits how long it waits for the lease to
    /// read the files.
    ///
    /// # Errors
    /// As [`Ledger::open`]; also `Busy` if another process holds the lease.
    pub fn open_shared(
        disk: Arc<dyn Disk>,
        state_dir: &Path,
        boot_id: &str,
        label: &str,
        timeout: Duration,
    ) -> Result<Self> {
        Self::build(disk, state_dir, boot_id, Some((label, timeout)))
    }

    fn build(
        disk: Arc<dyn Disk>,
        state_dir: &Path,
        boot_id: &str,
        share: Option<(&str, Duration)>,
    ) -> Result<Self> {
        let dir = state_dir.join(LEDGER_DIR);
        durability::create_dir_durably(disk.as_ref(), &dir)?;
        match disk
            .sync_dir(state_dir)
            .map_err(|e| Error::io("sync", state_dir, &e))
        {
            Err(error) if !error.is_read_only() => return Err(error),
            _ => {}
        }
        let lock = lease::lock_ledger(disk.as_ref(), &dir, share.is_some())?;
        let lease = share
            .map(|(label, _)| Lease::new(disk.as_ref(), &dir, label))
            .transpose()?;
        let unread = Error::Usage("the ledger is not read yet".into());
        let ledger = Self {
            boot_id: boot_id.to_owned(),
            inner: Mutex::new(Inner::new(
                Recovered::default(),
                JournalState::Broken(unread),
                0,
            )),
            flushed: Condvar::new(),
            replacing: Mutex::new(()),
            _lock: lock,
            lease,
            disk,
            dir,
        };
        match ledger.lease.as_ref().zip(share) {
            None => ledger.read_all(None)?,
            Some((lease, (_, timeout))) => {
                let (history, _) = lease.acquire(timeout)?;
                let read = ledger.read_all(Some(lease));
                if let JournalState::Ready(journal) = &ledger.inner().journal
                    && history == LeaseHistory::Released
                {
                    // If this fails, the next holder reads the files as after a crash.
                    let _ = lease.mark_released(journal.number);
                }
                lease.release();
                read?;
            }
        }
        Ok(ledger)
    }

    fn read_all(&self, lease: Option<&Lease>) -> Result<()> {
        let found = recover(self.disk.as_ref(), &self.dir, &self.boot_id)?;
        let read_only = lease.map_or(Ok(None), lease::mark_held)?;
        let unwritten = Error::Usage("the ledger is being opened".into());
        *self.inner() = Inner::new(found, JournalState::Broken(unwritten), self.reserved());
        match read_only {
            None => self.rewrite(),
            Some(error) => self.inner().report.not_writable = Some(error.to_string()),
        }
        Ok(())
    }

    /// Writes all that was read into new files. It may be only in the page cache: after a crash between write and
    /// fdatasync, or after a failed fdatasync whose error was returned to an earlier process.
    fn rewrite(&self) {
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The report contains a failure.
        let _ = self.replace_files(self.inner());
    }

    /// Returns the state of the files at opening, and whether the ledger can be written now.
    pub fn report(&self) -> Report {
        self.inner().report.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === Reading ===

impl Ledger {
    /// Returns the claim as it is on disk, or as started if its completion is not durable yet.
    pub fn get(&self, uid: &str) -> Option<Arc<Entry>> {
        self.inner().view(uid)
    }

    /// Returns every claim, ordered by uid.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        let inner = self.inner();
        let mut uids: Vec<&String> = inner.staged.uids().chain(inner.durable.uids()).collect();
        uids.sort_unstable();
        uids.dedup();
        uids.into_iter().filter_map(|uid| inner.view(uid)).collect()
    }

    /// Returns every claim that names the device, including shares and admin access. The node part of the pool's name
    /// is ignored.
    pub fn holders(&self, pool: &str, device: &str) -> Vec<Arc<Entry>> {
        let inner = self.inner();
        let mut uids: Vec<&String> = inner
            .durable
            .holders(pool, device)
            .chain(inner.staged.holders(pool, device))
            .map(|held| &held.entry.uid)
            .collect();
        uids.sort_unstable();
        uids.dedup();
        uids.into_iter().filter_map(|uid| inner.view(uid)).collect()
    }
}

impl Inner {
    /// `reserved` is the size of the reserve.
    fn new(found: Recovered, journal: JournalState, reserved: u64) -> Self {
        let (staged_end, allocated) = match &journal {
            JournalState::Ready(journal) => (journal.end, journal.allocated),
            _ => (0, 0),
        };
        Self {
            durable: found.state.clone(),
            staged: found.state,
            pending: Vec::new(),
            buffer: Vec::new(),
            last_seq: found.last_seq,
            durable_seq: found.last_seq,
            journal,
            staged_end,
            allocated,
            reserved,
            reserve_wanted: reserve_for(found.length),
            last_journal: found.last_journal,
            compact_at: COMPACT_WHEN_IDLE_BYTES,
            waiters: 0,
            failed: Vec::new(),
            lost_starts: BTreeMap::new(),
            obsolete: found.files,
            report: found.report,
            lease_state: lease::LeaseState::Released,
        }
    }

    /// Neither a completion nor a release is visible before it is durable, because the response to a repeated call
    /// depends on it. A start is visible at once, because it reports nothing as done.
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

// === Writing ===

impl Ledger {
    /// Records that preparation of a claim starts, before any device is set up for it.
    ///
    /// With `durable` false, the record is written together with the next one, usually the claim's completion, and
    /// shares its fdatasync. This is correct if nothing that is set up in between outlives the process. Starting a
    /// claim again replaces its entry.
    ///
    /// # Errors
    /// `Held` if another claim holds one of the devices; `Usage`; `Io`, which changes nothing.
    pub fn start(&self, mut entry: Entry, durable: bool) -> Result<()> {
        if entry.uid.is_empty() {
            return Err(Error::Usage(
                "a claim without a uid cannot be recorded".into(),
            ));
        }
        entry.state = Phase::Started;
        entry.boot_id.clone_from(&self.boot_id);
        self.record_claim(durable, |inner| {
            inner.staged.check(&entry)?;
            if let Some(old) = inner.staged.get(&entry.uid)
                && old.entry.state == Phase::Completed
                && old.entry.devices != entry.devices
            {
                return Err(Error::Usage(format!(
                    "claim {}/{} (uid {}) is prepared with other devices; release it before it is prepared with new ones",
                    entry.namespace, entry.name, entry.uid
                )));
            }
            inner.lost_starts.remove(&entry.uid);
            Ok(entry.clone())
        })
    }

    /// Records that a started claim is prepared. When this returns, the claim may be reported as prepared.
    ///
    /// # Errors
    /// `Usage` if the claim was not started; `Io`, which leaves the claim unchanged.
    pub fn complete(&self, uid: &str, payload: Value) -> Result<()> {
        self.record_claim(true, |inner| {
            let Some(held) = inner.staged.get(uid) else {
                return Err(inner.lost_starts.get(uid).cloned().unwrap_or_else(|| {
                    Error::Usage(format!(
                        "claim {uid} cannot be completed: its preparation was never started"
                    ))
                }));
            };
            let mut entry = held.entry.as_ref().clone();
            entry.state = Phase::Completed;
            entry.payload = payload.clone();
            entry.boot_id.clone_from(&self.boot_id);
            Ok(entry)
        })
    }

    /// Records what `entry` returns, if afterwards there is still room to release every claim.
    fn record_claim(
        &self,
        durable: bool,
        entry: impl Fn(&mut Inner) -> Result<Entry>,
    ) -> Result<()> {
        loop {
            let mut inner = self.writable()?;
            let (record, line) = {
                let entry = entry(&mut inner)?;
                inner.encode(Body::Claim(Box::new(entry)))?
            };
            let needed = inner.bytes_needed(&record, &line);
            if inner.has_room(needed) {
                inner.report.not_writable = None;
                let seq = inner.stage(record, line);
                return if durable {
                    self.commit(inner, seq)
                } else {
                    Ok(())
                };
            }
            drop(inner);
            self.make_room(needed)?;
        }
    }

    /// Records that a claim no longer holds devices. Returns false if it did not hold any.
    ///
    /// # Errors
    /// `Io`, which leaves the claim unchanged.
    pub fn release(&self, uid: &str) -> Result<bool> {
        let mut inner = self.checked_lease(self.inner())?;
        if inner.staged.get(uid).is_none() {
            if inner.lost_starts.contains_key(uid) {
                // Its failed record may be on disk. Only a repair ensures that it is ignored.
                drop(inner);
                inner = self.writable()?;
                inner.lost_starts.remove(uid);
            }
            if inner.durable.get(uid).is_none() {
                return Ok(false);
            }
            // The release of another caller is being written.
            let seq = inner.last_seq;
            return self.commit(inner, seq).map(|()| true);
        }
        drop(inner);
        let mut inner = self.writable()?;
        if inner.staged.get(uid).is_none() {
            drop(inner);
            return self.release(uid);
        }
        let (record, line) = inner.encode(Body::Release {
            uid: uid.to_owned(),
        })?;
        let seq = inner.stage(record, line);
        self.commit(inner, seq).map(|()| true)
    }
}

impl Inner {
    fn encode(&self, body: Body) -> Result<(Record, Vec<u8>)> {
        let record = Record {
            seq: self.last_seq + 1,
            body,
        };
        let line = record.encode();
        // A record that cannot be read back, for example one nested too deep, must not be reported as durable.
        let readable = || crate::record::scan(&line).records.len() == 1;
        if line.len() > MAX_RECORD_BYTES || !readable() {
            let size = line.len();
            return Err(Error::Usage(format!(
                "a record of {size} bytes cannot be stored: too large or nested too deep"
            )));
        }
        Ok((record, line))
    }

    /// Adds the next record to those that [`Ledger::commit`] writes, and returns its number.
    fn stage(&mut self, record: Record, line: Vec<u8>) -> u64 {
        self.last_seq = record.seq;
        self.staged.apply(&record);
        self.staged_end += line.len() as u64;
        self.buffer.extend(line);
        self.pending.push(record);
        self.last_seq
    }

    fn failure_of(&self, seq: u64) -> Option<Error> {
        self.failed
            .iter()
            .find(|(range, _)| range.contains(&seq))
            .map(|(_, error)| error.clone())
    }
}
