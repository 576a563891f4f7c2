//! A ledger that several processes have open: each reads what the others recorded when its turn comes.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use super::{Books, JournalState, LOCK, Ledger};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::recovery::recover;
use crate::turn::{Since, Turn};

impl Ledger {
    /// Waits at most `wait` for this process's turn and reads what others recorded meanwhile; says whether they did.
    /// The ledger can be changed from here to [`Ledger::give_turn`], by any thread of this process.
    ///
    /// # Errors
    /// `Busy` if another process keeps its turn; `Io`; `Usage` if it is this process's turn already, or the ledger is
    /// not shared.
    pub fn take_turn(&self, wait: Duration) -> Result<Since> {
        let turn = self.shared_turn()?;
        if self.books().in_turn {
            return Err(Error::Usage("it is this process's turn already".into()));
        }
        let (since, journal) = turn.enter(wait)?;
        self.read_since(turn, since, journal)
            .inspect_err(|_| turn.leave())?;
        self.books().in_turn = true;
        Ok(since)
    }

    fn read_since(&self, turn: &Turn, since: Since, journal: u64) -> Result<()> {
        match since {
            Since::Nothing => turn.begin(),
            Since::Turns => self.reread(turn, Some(journal)),
            Since::Abandoned => self.reread(turn, None),
        }
    }

    /// Lets another process have its turn. What this one left half done is then read as after its death.
    ///
    /// # Errors
    /// `Io` if what was started and never waited for cannot be made durable. The turn is given back all the same.
    pub fn give_turn(&self) -> Result<()> {
        let turn = self.shared_turn()?;
        let books = self.books();
        if !books.in_turn {
            return Err(not_in_turn());
        }
        let kept = if books.pending.is_empty() {
            drop(books);
            Ok(())
        } else {
            let seq = books.last_seq;
            self.commit(books, seq)
        };
        let mut books = self.books();
        while matches!(books.journal, JournalState::Flushing) {
            books = self
                .flushed
                .wait(books)
                .unwrap_or_else(PoisonError::into_inner);
        }
        books.in_turn = false;
        let settled = match &books.journal {
            JournalState::Ready(journal) if books.pending.is_empty() => turn.settle(journal.number),
            _ => Ok(()),
        };
        drop(books);
        turn.leave();
        kept.and(settled)
    }

    /// Whether another process waits for its turn.
    pub fn turn_wanted(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::wanted)
    }

    /// Reads the files again, and begins the turn once they are read: a turn that was begun is one that knows them.
    /// Goes on with `journal`; where a process ended in its turn they are written again, as at an opening.
    fn reread(&self, turn: &Turn, journal: Option<u64>) -> Result<()> {
        let replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let found = recover(self.disk.as_ref(), &self.dir, &self.boot_id)?;
        let sound = journal == Some(found.last_journal) && found.report.damage.is_empty();
        let journal = if sound {
            let (number, end) = (found.last_journal, found.last_end);
            Journal::go_on(self.disk.as_ref(), &self.dir, number, end).map(JournalState::Ready)?
        } else {
            JournalState::Broken(Error::Usage("the ledger is being read again".into()))
        };
        turn.begin()?;
        let mut books = self.books();
        let (claims, before) = (found.report.claims, books.report.clone());
        *books = Books::new(found, journal);
        if sound {
            // What was found at opening, and when a turn was abandoned, stays told.
            books.report = before;
            books.report.claims = claims;
            books.report.not_writable = None;
        }
        drop(books);
        drop(replacing);
        if !sound {
            self.write_anew();
        }
        Ok(())
    }

    /// Refuses a change outside this process's turn: another may be changing the same files.
    pub(super) fn may_change(&self) -> Result<()> {
        if self.turn.is_none() || self.books().in_turn {
            return Ok(());
        }
        Err(not_in_turn())
    }

    fn shared_turn(&self) -> Result<&Turn> {
        self.turn
            .as_ref()
            .ok_or_else(|| Error::Usage("the ledger is not shared: it has no turns".into()))
    }
}

fn not_in_turn() -> Error {
    Error::Usage("the ledger is shared, and it is not this process's turn".into())
}

pub(super) fn take_lock(
    disk: &dyn Disk,
    dir: &Path,
    shared: bool,
) -> Result<Box<dyn Debug + Send + Sync>> {
    let path = dir.join(LOCK);
    disk.lock(&path, shared).map_err(|error| {
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
