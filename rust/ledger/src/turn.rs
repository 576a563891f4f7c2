//! Several processes on one ledger, one at a time: whose turn it is, and what the one before left.
//!
//! The turnstile keeps them apart; the note in it says who was inside last and whether they went out in good order. What
//! a process does in its turn is the ledger's business.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::disk::{Disk, Turnstile};
use crate::error::{Error, Result};

pub(crate) const TURN: &str = "turn";
/// Beside it: who stands next.
pub(crate) const TURN_NEXT: &str = "turn.next";
/// Every note is as long, so that a shorter one leaves nothing of a longer one behind.
const LENGTH: usize = 160;
const LABEL: usize = 64;
const POLL: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// What happened on the ledger since this process had its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Nothing: no other process had a turn.
    Nothing,
    /// Another process had a turn and ended it: all that it recorded is durable.
    Turns,
    /// Another process ended in its turn, or could not write: what it was doing may be half done.
    Abandoned,
}

#[derive(Debug)]
pub(crate) struct Turn {
    gate: Box<dyn Turnstile>,
    dir: PathBuf,
    /// Different for each opening of a ledger, in any process.
    token: String,
    /// For people: which agent this is.
    label: String,
}

impl Turn {
    pub(crate) fn new(disk: &dyn Disk, dir: &Path, label: &str) -> Result<Self> {
        let path = dir.join(TURN);
        let gate = disk
            .turnstile(&path)
            .map_err(|e| Error::io("open", &path, &e))?;
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_nanos());
        // RandomState is seeded by the operating system.
        let random = RandomState::new().build_hasher().finish();
        let label = label
            .chars()
            .filter(char::is_ascii_graphic)
            .take(LABEL)
            .collect();
        Ok(Self {
            gate,
            dir: dir.to_owned(),
            token: format!("{nanos:x}-{random:016x}"),
            label,
        })
    }

    /// Waits at most `wait` for this process's turn. It is not [`Turn::begin`] yet: what was left must be read first.
    /// Also gives the number of the journal that was in use when the last turn was settled.
    pub(crate) fn enter(&self, wait: Duration) -> Result<(Since, u64)> {
        let began = Instant::now();
        let mut pause = POLL.0;
        while !self.try_enter()? {
            let waited = began.elapsed();
            if waited >= wait {
                let holder = self.holder();
                self.gate.leave();
                return Err(Error::Busy {
                    dir: self.dir.clone(),
                    holder,
                    waited,
                });
            }
            sleep(pause);
            pause = POLL.1.min(pause * 2);
        }
        let note = self.gate.note().map_err(|e| {
            self.gate.leave();
            self.error("read", &e)
        })?;
        Ok(self.since(&note))
    }

    fn try_enter(&self) -> Result<bool> {
        self.gate.try_enter().map_err(|error| {
            self.gate.leave();
            self.error("lock", &error)
        })
    }

    fn since(&self, note: &[u8]) -> (Since, u64) {
        let text = String::from_utf8_lossy(note);
        let mut words = text.split_whitespace();
        let (token, journal) = (words.next(), words.next().map(str::parse));
        match (token, journal) {
            (Some(token), _) if token == self.token => (Since::Nothing, 0),
            (Some(_), Some(Ok(journal))) => (Since::Turns, journal),
            _ => (Since::Abandoned, 0),
        }
    }

    fn holder(&self) -> String {
        let note = self.gate.note().unwrap_or_default();
        let text = String::from_utf8_lossy(&note);
        let mut words = text.split_whitespace().skip(2);
        match (words.next(), words.next()) {
            (Some(pid), Some(label)) => format!("pid {pid}, {label}"),
            (Some(pid), None) => format!("pid {pid}"),
            _ => "unknown".into(),
        }
    }

    /// Says that this process is inside; from now on it may change things.
    pub(crate) fn begin(&self) -> Result<()> {
        self.write("in")
    }

    /// Says that this process leaves nothing half done, and which journal the next one goes on with: a journal with a
    /// higher number may be there that nobody made durable.
    pub(crate) fn settle(&self, journal: u64) -> Result<()> {
        self.write(&journal.to_string())
    }

    pub(crate) fn leave(&self) {
        self.gate.leave();
    }

    pub(crate) fn wanted(&self) -> bool {
        self.gate.queued()
    }

    fn write(&self, state: &str) -> Result<()> {
        let pid = std::process::id();
        let note = format!("{} {state} {pid} {}", self.token, self.label);
        let note = format!("{note:<width$}\n", width = LENGTH - 1);
        self.gate
            .write_note(note.as_bytes())
            .map_err(|e| self.error("write", &e))
    }

    fn error(&self, action: &'static str, error: &std::io::Error) -> Error {
        Error::io(action, &self.dir.join(TURN), error)
    }
}
