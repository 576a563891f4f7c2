//! The lease on a shared ledger: one process at a time holds it, and reads how the previous holder left the files.
//!
//! A [`QueueLock`] excludes other processes. A note in its file names the last holder and records whether that holder
//! released the lease. [`crate::Ledger`] defines the operations of a process that holds the lease.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::disk::{Disk, QueueLock};
use crate::error::{Error, Result};

pub(crate) const LEASE_FILE: &str = "turn";
/// Locked by the process that is next in the queue.
pub(crate) const QUEUE_FILE: &str = "turn.next";
/// All notes have the same length, so that a shorter note overwrites a longer one completely.
const NOTE_BYTES: usize = 160;
const MAX_LABEL_BYTES: usize = 64;
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Changes to a shared ledger since this process last held its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseHistory {
    /// No other process held the lease.
    Unchanged,
    /// Another process held the lease and released it: all that it recorded is durable.
    Released,
    /// Another process ended while it held the lease, or could not write: its last change may be incomplete.
    Abandoned,
}

#[derive(Debug)]
pub(crate) struct Lease {
    lock: Box<dyn QueueLock>,
    dir: PathBuf,
    /// Different for each opening of a ledger, in any process.
    token: String,
    /// The name of this process in messages of other processes.
    label: String,
}

impl Lease {
    pub(crate) fn new(disk: &dyn Disk, dir: &Path, label: &str) -> Result<Self> {
        let path = dir.join(LEASE_FILE);
        let lock = disk
            .queue_lock(&path)
            .map_err(|e| Error::io("open", &path, &e))?;
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_nanos());
        // RandomState is seeded by the operating system.
        let random = RandomState::new().build_hasher().finish();
        let label = label
            .chars()
            .filter(char::is_ascii_graphic)
            .take(MAX_LABEL_BYTES)
            .collect();
        Ok(Self {
            lock,
            dir: dir.to_owned(),
            token: format!("{nanos:x}-{random:016x}"),
            label,
        })
    }

    /// Waits at most `timeout` for the lock. The caller reads the files before it calls [`Lease::mark_held`].
    /// Returns the history and the number of the journal that the last holder recorded at its release.
    pub(crate) fn acquire(&self, timeout: Duration) -> Result<(LeaseHistory, u64)> {
        let start = Instant::now();
        let mut pause = MIN_POLL_INTERVAL;
        while !self.try_acquire()? {
            let waited = start.elapsed();
            if waited >= timeout {
                let holder = self.holder();
                self.lock.release();
                return Err(Error::Busy {
                    dir: self.dir.clone(),
                    holder,
                    waited,
                });
            }
            sleep(pause);
            pause = MAX_POLL_INTERVAL.min(pause * 2);
        }
        let note = self.lock.read_note().map_err(|e| {
            self.lock.release();
            self.error("read", &e)
        })?;
        Ok(self.history(&note))
    }

    fn try_acquire(&self) -> Result<bool> {
        self.lock.try_acquire().map_err(|error| {
            self.lock.release();
            self.error("lock", &error)
        })
    }

    fn history(&self, note: &[u8]) -> (LeaseHistory, u64) {
        let text = String::from_utf8_lossy(note);
        let mut words = text.split_whitespace();
        let (token, journal) = (words.next(), words.next().map(str::parse));
        match (token, journal) {
            (Some(token), _) if token == self.token => (LeaseHistory::Unchanged, 0),
            (Some(_), Some(Ok(journal))) => (LeaseHistory::Released, journal),
            _ => (LeaseHistory::Abandoned, 0),
        }
    }

    fn holder(&self) -> String {
        let note = self.lock.read_note().unwrap_or_default();
        let text = String::from_utf8_lossy(&note);
        let mut words = text.split_whitespace().skip(2);
        match (words.next(), words.next()) {
            (Some(pid), Some(label)) => format!("pid {pid}, {label}"),
            (Some(pid), None) => format!("pid {pid}"),
            _ => "unknown".into(),
        }
    }

    /// Records that this process holds the lease. From now on it may change the files.
    pub(crate) fn mark_held(&self) -> Result<()> {
        self.write_note("in")
    }

    /// Records that this process leaves no incomplete change, and the journal that the next holder continues: a journal
    /// with a higher number may exist that was never made durable.
    pub(crate) fn mark_released(&self, journal: u64) -> Result<()> {
        self.write_note(&journal.to_string())
    }

    pub(crate) fn release(&self) {
        self.lock.release();
    }

    pub(crate) fn is_contended(&self) -> bool {
        self.lock.is_contended()
    }

    fn write_note(&self, state: &str) -> Result<()> {
        let pid = std::process::id();
        let note = format!("{} {state} {pid} {}", self.token, self.label);
        let note = format!("{note:<width$}\n", width = NOTE_BYTES - 1);
        self.lock
            .write_note(note.as_bytes())
            .map_err(|e| self.error("write", &e))
    }

    fn error(&self, action: &'static str, error: &std::io::Error) -> Error {
        Error::io(action, &self.dir.join(LEASE_FILE), error)
    }
}
