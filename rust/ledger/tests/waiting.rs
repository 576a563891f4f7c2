//! While a record is being written, other callers read only data that survives a power cut.

#![allow(clippy::unwrap_used)]

mod watched;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dra_ledger::{Entry, Error, FileSystem, Ledger, Phase};
use serde_json::{Value, json};
use watched::{At, Paused};

const SOON: Duration = Duration::from_millis(200);
const LATER: Duration = Duration::from_secs(30);

fn claim(uid: &str, device: &str) -> Entry {
    serde_json::from_value(json!({"uid": uid, "devices": [{"pool": "p", "device": device}]}))
        .unwrap()
}

fn payload(ledger: &Ledger, uid: &str) -> Option<(Phase, Value)> {
    let entry = ledger.get(uid)?;
    Some((entry.state.clone(), entry.payload.clone()))
}

/// Runs `work` in a thread, and `during` while its record is written and not yet durable.
fn while_it_waits(
    disk: &Paused,
    work: impl FnOnce() -> Result<(), Error> + Send,
    during: impl FnOnce(),
) {
    thread::scope(|scope| {
        disk.pause(true);
        let worker = scope.spawn(work);
        disk.wait_until_paused();
        let seen = catch_unwind(AssertUnwindSafe(during));
        disk.pause(false);
        worker.join().unwrap().unwrap();
        seen.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

#[test]
fn a_claim_is_not_shown_as_prepared_before_that_is_durable() {
    for durable in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Paused::new(At::SyncOfFile));
        let ledger = Ledger::open_on(disk.clone(), dir.path(), "boot").unwrap();
        ledger.start(claim("a", "d"), durable).unwrap();
        while_it_waits(
            &disk,
            || ledger.complete("a", json!(1)),
            || {
                assert_eq!(ledger.get("a").unwrap().state, Phase::Started);
                assert_eq!(ledger.entries()[0].state, Phase::Started);
                assert_eq!(ledger.holders("p", "d")[0].state, Phase::Started);
                let refused = ledger.start(claim("b", "d"), false);
                assert!(matches!(refused, Err(Error::Held(_))));
            },
        );
        assert_eq!(payload(&ledger, "a"), Some((Phase::Completed, json!(1))));
        while_it_waits(
            &disk,
            || ledger.complete("a", json!(2)),
            || assert_eq!(payload(&ledger, "a"), Some((Phase::Completed, json!(1)))),
        );
        assert_eq!(payload(&ledger, "a"), Some((Phase::Completed, json!(2))));
    }
}

#[test]
fn a_release_is_not_shown_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Paused::new(At::SyncOfFile));
    let ledger = Ledger::open_on(disk.clone(), dir.path(), "boot").unwrap();
    ledger.start(claim("a", "d"), false).unwrap();
    ledger.complete("a", json!(1)).unwrap();
    while_it_waits(
        &disk,
        || ledger.release("a").map(|held| assert!(held)),
        || {
            assert_eq!(payload(&ledger, "a"), Some((Phase::Completed, json!(1))));
            assert_eq!(ledger.entries().len(), 1);
            assert_eq!(ledger.holders("p", "d").len(), 1);
        },
    );
    assert_eq!(payload(&ledger, "a"), None);
    assert!(ledger.holders("p", "d").is_empty());
}

#[test]
fn a_second_release_of_a_claim_is_answered_after_the_first_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Paused::new(At::SyncOfFile));
    let ledger = Ledger::open_on(disk.clone(), dir.path(), "boot").unwrap();
    ledger.start(claim("a", "d"), true).unwrap();
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        while_it_waits(
            &disk,
            || ledger.release("a").map(|held| assert!(held)),
            || {
                let ledger = &ledger;
                scope.spawn(move || sender.send(ledger.release("a")).unwrap());
                let early = answers.recv_timeout(SOON);
                assert!(
                    early.is_err(),
                    "answered while the record was being written"
                );
            },
        );
        assert!(answers.recv().unwrap().unwrap());
    });
}

/// A start reports nothing as done, so it is visible at once.
#[test]
fn a_start_that_replaces_another_is_shown_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path(), "boot").unwrap();
    ledger.start(claim("a", "d"), true).unwrap();
    ledger.start(claim("a", "e"), false).unwrap();
    assert_eq!(ledger.get("a").unwrap().devices[0].device, "e");
}

#[test]
fn a_lease_is_released_after_a_record_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Paused::new(At::SyncOfFile));
    let ledger = Ledger::open_shared(disk.clone(), dir.path(), "boot", "a", LATER).unwrap();
    let other = Ledger::open_shared(Arc::new(FileSystem), dir.path(), "boot", "b", LATER).unwrap();
    ledger.acquire_lease(LATER).unwrap();
    ledger.start(claim("a", "d"), false).unwrap();
    let (sender, ended) = mpsc::channel();
    thread::scope(|scope| {
        while_it_waits(
            &disk,
            || ledger.complete("a", json!(1)),
            || {
                let ledger = &ledger;
                scope.spawn(move || sender.send(ledger.release_lease()).unwrap());
                let early = ended.recv_timeout(SOON);
                assert!(
                    early.is_err(),
                    "the lease was released while a record was being written"
                );
                assert!(matches!(other.acquire_lease(SOON), Err(Error::Busy { .. })));
            },
        );
        ended.recv().unwrap().unwrap();
    });
    other.acquire_lease(LATER).unwrap();
    assert_eq!(payload(&other, "a"), Some((Phase::Completed, json!(1))));
}
