//! A full disk: whatever the ledger has recorded can be released, and it records nothing that could not be.

#![allow(clippy::unwrap_used)]

mod faulty;
mod model;
mod sample;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dra_ledger::{Entry, Error, Ledger, Phase};
use faulty::{FaultyDisk, Plan};
use model::dice;
use proptest::prelude::*;
use serde_json::json;

const KIB: u64 = 1024;
const WAIT: Duration = Duration::from_secs(10);

fn open(disk: &FaultyDisk) -> Ledger {
    Ledger::open_on(Arc::new(disk.clone()), Path::new("/state"), "boot").unwrap()
}

fn claim(number: usize) -> Entry {
    serde_json::from_value(json!({
        "uid": format!("7d4f1c2a-93c5-4b7e-8a36-{number:012}"), "namespace": "team", "name": format!("c{number}"),
        "devices": [{"pool": "node/gpu", "device": format!("gpu-{number}"), "request": "gpu"}],
    }))
    .unwrap()
}

fn prepare(ledger: &Ledger, number: usize) -> Result<(), Error> {
    let entry = claim(number);
    let uid = entry.uid.clone();
    ledger.start(entry, false)?;
    ledger.complete(&uid, json!("x".repeat(number % 7 * 100)))
}

/// Prepares claims until one is refused; returns the error.
fn prepare_until_refused(ledger: &Ledger, first: usize) -> Error {
    (first..first + 100_000)
        .find_map(|number| prepare(ledger, number).err())
        .unwrap()
}

fn release_all(ledger: &Ledger) -> Result<usize, Error> {
    let held = ledger.entries();
    for entry in &held {
        ledger.release(&entry.uid)?;
    }
    assert!(ledger.entries().is_empty());
    Ok(held.len())
}

#[test]
fn every_claim_can_be_released_after_claims_have_filled_the_disk() {
    for free in [0, 4 * KIB, 300 * KIB, 700 * KIB] {
        let disk = FaultyDisk::default();
        let ledger = open(&disk);
        disk.leave(Some(free));
        let refused = prepare_until_refused(&ledger, 0).to_string();
        assert!(refused.contains("free some space"), "{refused}");
        assert!(ledger.report().not_writable.is_some());
        assert!(release_all(&ledger).unwrap() > 100);
        drop(ledger);
        assert!(open(&disk.power_cut(&mut |_| 0)).entries().is_empty());
    }
}

/// The new process has to write new files first: it cannot know whether what it reads is on disk.
#[test]
fn every_claim_can_be_released_after_a_restart_on_a_full_disk() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    for number in 0..400 {
        prepare(&ledger, number).unwrap();
    }
    disk.leave(Some(0));
    drop(ledger);
    let disk = disk.power_cut(&mut |_| 0);
    disk.leave(Some(0));
    let ledger = open(&disk);
    assert_eq!(ledger.entries().len(), 400);
    assert_eq!(release_all(&ledger).unwrap(), 400);
}

#[test]
fn every_claim_can_be_released_after_a_write_failed_on_a_full_disk() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    for number in 0..131 {
        prepare(&ledger, number).unwrap();
    }
    disk.leave(Some(0));
    // As a file system that copies what it overwrites does.
    disk.fail(Some(Plan {
        at: 1,
        count: 1,
        kind: io::ErrorKind::StorageFull,
        also: 0,
    }));
    assert!(prepare(&ledger, 131).is_err());
    assert_eq!(release_all(&ledger).unwrap(), 131);
}

#[test]
fn a_claim_is_refused_until_there_is_space_again_for_the_releases() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    prepare(&ledger, 0).unwrap();
    drop(ledger);
    disk.leave(Some(0));
    // The reserve is used for the new files, and others take what these free.
    let ledger = open(&disk);
    disk.leave(Some(0));
    let refused = prepare_until_refused(&ledger, 1).to_string();
    assert!(refused.contains("free some space"), "{refused}");
    assert_eq!(ledger.report().not_writable, Some(refused));
    assert!(ledger.entries().len() < 20 && ledger.compaction_due());
    assert!(ledger.compact().is_err());
    disk.leave(None);
    prepare(&ledger, 99).unwrap();
    assert!(ledger.report().not_writable.is_none() && !ledger.compaction_due());
}

#[test]
fn a_disk_without_space_for_a_first_journal_refuses_claims_and_recovers() {
    let disk = FaultyDisk::default();
    disk.leave(Some(0));
    let ledger = open(&disk);
    assert!(ledger.report().not_writable.is_some());
    assert!(matches!(prepare(&ledger, 0), Err(Error::Io { .. })));
    disk.leave(None);
    prepare(&ledger, 0).unwrap();
}

#[test]
fn a_record_that_is_larger_than_a_journal_keeps_the_room_of_the_releases() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    prepare(&ledger, 0).unwrap();
    disk.leave(Some(100 * KIB));
    let large = json!("x".repeat(900 * 1024));
    let uid = claim(0).uid;
    assert!(ledger.complete(&uid, large.clone()).is_err());
    assert_eq!(ledger.get(&uid).unwrap().payload, json!(""));
    disk.leave(None);
    ledger.complete(&uid, large).unwrap();
    disk.leave(Some(0));
    drop(ledger);
    assert_eq!(release_all(&open(&disk)).unwrap(), 1);
}

#[test]
fn agents_that_share_a_ledger_keep_room_for_the_claims_of_each_other() {
    let disk = FaultyDisk::default();
    let shared = |label| {
        let disk = Arc::new(disk.clone());
        Ledger::open_shared(disk, Path::new("/state"), "boot", label, WAIT).unwrap()
    };
    let (old, new) = (shared("old"), shared("new"));
    disk.leave(Some(600 * KIB));
    let mut refused = [false, false];
    for number in 0..10_000 {
        let index = number % 2;
        let ledger = [&old, &new][index];
        ledger.acquire_lease(WAIT).unwrap();
        refused[index] = prepare(ledger, number).is_err();
        ledger.release_lease().unwrap();
        if refused == [true, true] {
            break;
        }
    }
    assert_eq!(refused, [true, true]);
    drop(old);
    new.acquire_lease(WAIT).unwrap();
    assert!(release_all(&new).unwrap() > 100);
    new.release_lease().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sample::cases(30), ..ProptestConfig::default() })]

    /// Space comes and goes at any time; a restart too. A release of a recorded claim never fails.
    #[test]
    fn space_may_end_at_any_moment(
        steps in prop::collection::vec((0..8u8, 0..40usize), 1..120), seed: u64, space in 0..900u64,
    ) {
        let mut luck = dice(seed);
        let mut disk = FaultyDisk::thrifty();
        let mut ledger = open(&disk);
        let mut free = None;
        for (step, number) in steps {
            match step {
                0 => {
                    free = if luck(2) == 0 { None } else { Some(luck(space as usize + 1) as u64 * KIB) };
                    disk.leave(free);
                }
                1 if free.is_none() => {
                    drop(ledger);
                    disk = disk.power_cut(&mut luck);
                    ledger = open(&disk);
                }
                1 => {
                    drop(ledger);
                    disk = disk.process_killed();
                    ledger = open(&disk);
                }
                2 => drop(ledger.compact()),
                3 | 4 => drop(ledger.release(&claim(number).uid).unwrap()),
                _ => {
                    let size = luck(30_000);
                    let uid = claim(number).uid;
                    if ledger.start(claim(number), luck(2) == 0).is_ok() {
                        drop(ledger.complete(&uid, json!("x".repeat(size))));
                    }
                }
            }
        }
        disk.leave(Some(0));
        release_all(&ledger).unwrap();
        prop_assert!(ledger.entries().iter().all(|entry| entry.state == Phase::Completed));
    }
}
