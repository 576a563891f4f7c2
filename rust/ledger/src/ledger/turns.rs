//! A ledger that several processes have open: each reads what the others recorded when its turn comes.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::{Books, JournalState, LOCK, Ledger};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::recovery::recover;
use crate::turn::{Since, Turn};

/// Where this process stands in the turns on a shared ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Outside,
    /// A thread is taking the turn or giving it back.
    Passing,
    Inside,
    /// Inside, on a file system that was read-only: others are not told yet, so nothing may be changed.
    Undeclared,
}

impl Ledger {
    /// Waits at most `wait` for this process's turn and reads what others recorded meanwhile; says whether they did.
    /// The ledger can be changed from here to [`Ledger::give_turn`], by any thread of this process.
    ///
    /// On a read-only file system the turn is given, and changes are refused with `Io` until it can be written.
    ///
    /// # Errors
    /// `Busy` if another process keeps its turn; `Io`; `Usage` if it is this process's turn already, or one of its
    /// threads waits for it, or the ledger is not shared; `Unsupported` if a newer version wrote what is there now.
    pub fn take_turn(&self, wait: Duration) -> Result<Since> {
        let turn = self.shared_turn()?;
        {
            let mut books = self.books();
            if books.place != Place::Outside {
                return Err(Error::Usage(
                    "it is this process's turn already, or one of its threads waits for it".into(),
                ));
            }
            books.place = Place::Passing;
        }
        let taken = turn.enter(wait).and_then(|(since, journal)| {
            self.read_since(turn, since, journal)
                .map(|place| (since, place))
                .inspect_err(|_| turn.leave())
        });
        let mut books = self.books();
        books.place = taken.as_ref().map_or(Place::Outside, |(_, place)| *place);
        taken.map(|(since, _)| since)
    }

    fn read_since(&self, turn: &Turn, since: Since, journal: u64) -> Result<Place> {
        match since {
            Since::Nothing => {
                let read_only = declare(turn)?;
                Ok(self.books().enter(read_only))
            }
            Since::Turns => self.reread(turn, Some(journal)),
            Since::Abandoned => self.reread(turn, None),
        }
    }

    /// Lets another process have its turn, once a compaction that is running has ended. What this one left half done is
    /// then read as after its death.
    ///
    /// # Errors
    /// `Io` if what was started and never waited for cannot be made durable. The turn is given back all the same.
    pub fn give_turn(&self) -> Result<()> {
        let turn = self.shared_turn()?;
        let mut books = self.books();
        let declared = match books.place {
            Place::Inside => true,
            Place::Undeclared => false,
            Place::Outside | Place::Passing => return Err(not_in_turn()),
        };
        // Nothing new is admitted from here on.
        books.place = Place::Passing;
        let kept = if books.pending.is_empty() {
            drop(books);
            Ok(())
        } else {
            let seq = books.last_seq;
            self.commit(books, seq)
        };
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut books = self.books();
        while matches!(books.journal, JournalState::Flushing) || books.waiting > 0 {
            books = self
                .flushed
                .wait(books)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let settled = match &books.journal {
            JournalState::Ready(journal) if declared && books.pending.is_empty() => {
                turn.settle(journal.number)
            }
            _ => Ok(()),
        };
        drop(books);
        turn.leave();
        // Last: another thread may take the turn from here on, through the same open files.
        self.books().place = Place::Outside;
        kept.and(settled)
    }

    /// Whether another process waits for its turn.
    pub fn turn_wanted(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::wanted)
    }

    /// Reads the files again, and begins the turn once they are read: a turn that was begun is one that knows them.
    /// Goes on with `journal`; where a process ended in its turn they are written again, as at an opening.
    fn reread(&self, turn: &Turn, journal: Option<u64>) -> Result<Place> {
        let replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let found = recover(self.disk.as_ref(), &self.dir, &self.boot_id)?;
        let sound = journal == Some(found.last_journal) && found.report.damage.is_empty();
        let journal = if sound {
            let (number, end) = (found.last_journal, found.last_end);
            match Journal::go_on(self.disk.as_ref(), &self.dir, number, end) {
                Err(error) if error.is_read_only() => JournalState::Broken(error),
                journal => JournalState::Ready(journal?),
            }
        } else {
            JournalState::Broken(Error::Usage("the ledger is being read again".into()))
        };
        let read_only = declare(turn)?;
        let mut books = self.books();
        let (claims, before) = (found.report.claims, books.report.clone());
        *books = Books::new(found, journal);
        if sound {
            // What was found at opening, and when a turn was abandoned, stays told.
            books.report = before;
            books.report.claims = claims;
            books.report.not_writable = None;
        }
        let writable = read_only.is_none();
        let place = books.enter(read_only);
        books.place = Place::Passing;
        drop(books);
        drop(replacing);
        if !sound && writable {
            self.write_anew();
        }
        Ok(place)
    }

    /// The same books if they may be changed. Outside this process's turn another may be changing the same files.
    pub(super) fn admitted<'a>(
        &self,
        mut books: MutexGuard<'a, Books>,
    ) -> Result<MutexGuard<'a, Books>> {
        match (&self.turn, books.place) {
            (None, _) | (Some(_), Place::Inside) => Ok(books),
            (Some(turn), Place::Undeclared) => {
                turn.begin()?;
                books.place = Place::Inside;
                if matches!(books.journal, JournalState::Ready(_)) {
                    books.report.not_writable = None;
                }
                Ok(books)
            }
            (Some(_), Place::Outside | Place::Passing) => Err(not_in_turn()),
        }
    }

    fn shared_turn(&self) -> Result<&Turn> {
        self.turn
            .as_ref()
            .ok_or_else(|| Error::Usage("the ledger is not shared: it has no turns".into()))
    }
}

impl Books {
    /// Where this process stands after it declared its turn; `read_only` is why it could not.
    fn enter(&mut self, read_only: Option<Error>) -> Place {
        match read_only {
            None => Place::Inside,
            Some(error) => {
                self.report.not_writable = Some(error.to_string());
                Place::Undeclared
            }
        }
    }
}

/// Begins the turn. The error of a read-only file system is given and not raised: nothing can be changed there, so others
/// need not be told.
pub(super) fn declare(turn: &Turn) -> Result<Option<Error>> {
    match turn.begin() {
        Err(error) if error.is_read_only() => Ok(Some(error)),
        begun => begun.map(|()| None),
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
