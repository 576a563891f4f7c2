//! Changes to a shared ledger: each process reads the records of the others when it acquires the lease.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::{Inner, JournalState, LOCK_FILE, Ledger};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::lease::{Lease, LeaseHistory};
use crate::recovery::recover;

/// The lease of this process on a shared ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    Released,
    /// A thread is acquiring or releasing it.
    Changing,
    Held,
    /// Held, but not marked because the file system was read-only: other processes cannot detect a crash of this one,
    /// so it must not change anything.
    Unmarked,
}

impl Ledger {
    /// Waits at most `timeout` for the lease and reads the records of other processes since the last one.
    /// Until [`Ledger::release_lease`], any thread of this process can change the ledger.
    ///
    /// On a read-only file system the lease is acquired, and changes fail with `Io` until the file system is writable.
    ///
    /// # Errors
    /// `Busy` if another process holds the lease; `Io`; `Usage` if this process already holds it or one of its threads
    /// is acquiring it, or if the ledger is not shared; `Unsupported` if a newer version wrote the current files.
    pub fn acquire_lease(&self, timeout: Duration) -> Result<LeaseHistory> {
        let lease = self.shared_lease()?;
        {
            let mut inner = self.inner();
            if inner.lease_state != LeaseState::Released {
                return Err(Error::Usage(
                    "this process already holds the lease, or one of its threads is acquiring it"
                        .into(),
                ));
            }
            inner.lease_state = LeaseState::Changing;
        }
        let acquired = lease.acquire(timeout).and_then(|(history, journal)| {
            self.catch_up(lease, history, journal)
                .map(|state| (history, state))
                .inspect_err(|_| lease.release())
        });
        let mut inner = self.inner();
        inner.lease_state = acquired
            .as_ref()
            .map_or(LeaseState::Released, |(_, state)| *state);
        acquired.map(|(history, _)| history)
    }

    fn catch_up(&self, lease: &Lease, history: LeaseHistory, journal: u64) -> Result<LeaseState> {
        match history {
            LeaseHistory::Unchanged => {
                let read_only = mark_held(lease)?;
                Ok(self.inner().state_after_mark(read_only))
            }
            LeaseHistory::Released => self.reload(lease, Some(journal)),
            LeaseHistory::Abandoned => self.reload(lease, None),
        }
    }

    /// Releases the lease after a running compaction has ended. The next holder treats an incomplete change as after a
    /// crash of this process.
    ///
    /// # Errors
    /// `Io` if the records of starts without `durable` cannot be made durable. The lease is released in this case too.
    pub fn release_lease(&self) -> Result<()> {
        let lease = self.shared_lease()?;
        let mut inner = self.inner();
        let marked = match inner.lease_state {
            LeaseState::Held => true,
            LeaseState::Unmarked => false,
            LeaseState::Released | LeaseState::Changing => return Err(lease_not_held()),
        };
        // From here on, changes are refused.
        inner.lease_state = LeaseState::Changing;
        let committed = if inner.pending.is_empty() {
            drop(inner);
            Ok(())
        } else {
            let seq = inner.last_seq;
            self.commit(inner, seq)
        };
        let _replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.inner();
        while matches!(inner.journal, JournalState::Flushing) || inner.waiters > 0 {
            inner = self
                .flushed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let released = match &inner.journal {
            JournalState::Ready(journal) if marked && inner.pending.is_empty() => {
                lease.mark_released(journal.number)
            }
            _ => Ok(()),
        };
        drop(inner);
        lease.release();
        // Last, because from here on another thread may acquire the lease through the same open files.
        self.inner().lease_state = LeaseState::Released;
        committed.and(released)
    }

    /// Whether another process waits for the lease.
    pub fn is_lease_contended(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_contended)
    }

    /// Reads the files again, then marks the lease as held: a holder that is marked has read them. Continues `journal`.
    /// If it is `None`, because a process ended while it held the lease, or if the files are damaged, they are
    /// rewritten as at an opening.
    fn reload(&self, lease: &Lease, journal: Option<u64>) -> Result<LeaseState> {
        let replacing = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let found = recover(self.disk.as_ref(), &self.dir, &self.boot_id)?;
        let intact = journal == Some(found.last_journal) && found.report.damage.is_empty();
        let journal = if intact {
            let (number, end, length) = (found.last_journal, found.last_end, found.last_length);
            match Journal::resume(self.disk.as_ref(), &self.dir, number, end, length) {
                Err(error) if error.is_read_only() => JournalState::Broken(error),
                journal => JournalState::Ready(journal?),
            }
        } else {
            JournalState::Broken(Error::Usage("the ledger is being read again".into()))
        };
        let read_only = mark_held(lease)?;
        let mut inner = self.inner();
        let (claims, before) = (found.report.claims, inner.report.clone());
        *inner = Inner::new(found, journal, self.reserved());
        if intact {
            // The report keeps the findings at opening and after abandoned leases.
            inner.report = before;
            inner.report.claims = claims;
            inner.report.not_writable = None;
        }
        let writable = read_only.is_none();
        let state = inner.state_after_mark(read_only);
        inner.lease_state = LeaseState::Changing;
        drop(inner);
        drop(replacing);
        if !intact && writable {
            self.rewrite();
        }
        Ok(state)
    }

    /// Returns `inner` if this process may change the files. Without the lease, another process may be changing them.
    pub(super) fn checked_lease<'a>(
        &self,
        mut inner: MutexGuard<'a, Inner>,
    ) -> Result<MutexGuard<'a, Inner>> {
        match (&self.lease, inner.lease_state) {
            (None, _) | (Some(_), LeaseState::Held) => Ok(inner),
            (Some(lease), LeaseState::Unmarked) => {
                lease.mark_held()?;
                inner.lease_state = LeaseState::Held;
                if matches!(inner.journal, JournalState::Ready(_)) {
                    inner.report.not_writable = None;
                }
                Ok(inner)
            }
            (Some(_), LeaseState::Released | LeaseState::Changing) => Err(lease_not_held()),
        }
    }

    fn shared_lease(&self) -> Result<&Lease> {
        self.lease
            .as_ref()
            .ok_or_else(|| Error::Usage("the ledger is not shared: it has no lease".into()))
    }
}

impl Inner {
    /// The state after [`mark_held`]; `read_only` is the error of a read-only file system.
    fn state_after_mark(&mut self, read_only: Option<Error>) -> LeaseState {
        match read_only {
            None => LeaseState::Held,
            Some(error) => {
                self.report.not_writable = Some(error.to_string());
                LeaseState::Unmarked
            }
        }
    }
}

/// Marks the lease as held. Returns the error of a read-only file system instead of failing: this process cannot change
/// anything there, so other processes need no mark.
pub(super) fn mark_held(lease: &Lease) -> Result<Option<Error>> {
    match lease.mark_held() {
        Err(error) if error.is_read_only() => Ok(Some(error)),
        marked => marked.map(|()| None),
    }
}

fn lease_not_held() -> Error {
    Error::Usage("the ledger is shared, and this process does not hold the lease".into())
}

pub(super) fn lock_ledger(
    disk: &dyn Disk,
    dir: &Path,
    shared: bool,
) -> Result<Box<dyn Debug + Send + Sync>> {
    let path = dir.join(LOCK_FILE);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::disk::FileSystem;
    use std::sync::Arc;
    use std::thread;

    const SOON: Duration = Duration::from_millis(200);
    const LATER: Duration = Duration::from_secs(30);

    /// Its answer depends on what the next lease of this process forgets.
    #[test]
    fn a_lease_is_released_after_the_last_caller_has_its_answer() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |label| Ledger::open_shared(Arc::new(FileSystem), dir.path(), "boot", label, LATER);
        let (ledger, other) = (open("a").unwrap(), open("b").unwrap());
        ledger.acquire_lease(LATER).unwrap();
        // A caller whose record was written by another one, and that has not run since.
        ledger.inner().waiters += 1;
        thread::scope(|scope| {
            let releasing = scope.spawn(|| ledger.release_lease());
            while ledger.inner().lease_state == LeaseState::Held {
                thread::yield_now();
            }
            assert!(matches!(other.acquire_lease(SOON), Err(Error::Busy { .. })));
            ledger.inner().waiters -= 1;
            ledger.flushed.notify_all();
            releasing.join().unwrap().unwrap();
        });
        other.acquire_lease(LATER).unwrap();
    }
}
