//! A disk that fails or loses power at any operation: no returned result is lost, and no failed record is read.

#![allow(clippy::unwrap_used)]

mod faulty;
mod model;
mod sample;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dra_ledger::{Entry, Error, Ledger, Phase};
use faulty::{FaultyDisk, Plan};
use model::{Call, Model, apply, call, claim, dice};
use proptest::prelude::*;
use serde_json::json;

fn open(disk: &FaultyDisk) -> Result<Ledger, Error> {
    Ledger::open_on(Arc::new(disk.clone()), Path::new("/state"), "boot")
}

/// Runs `calls` with `plan` armed, then ends the process as `end` does and checks what is left.
fn run(
    calls: &[Call],
    plan: Option<Plan>,
    mut end: impl FnMut(&FaultyDisk) -> FaultyDisk,
) -> Result<u64, TestCaseError> {
    let mut disk = FaultyDisk::default();
    let mut model = Model::default();
    drop(open(&disk).unwrap());
    disk.fail(plan);
    let mut ledger = open(&disk).ok();
    for call in calls {
        if matches!(call, Call::Reopen) {
            drop(ledger.take());
            let operations = disk.operations();
            disk = end(&disk);
            disk.fail(plan.map(|plan| Plan {
                // 0 is before the first operation: what has happened does not happen again.
                at: plan.at.saturating_sub(operations),
                count: if plan.at > operations { plan.count } else { 0 },
                also: plan.also.saturating_sub(operations),
                ..plan
            }));
            ledger = open(&disk).ok();
            if let Some(ledger) = &ledger {
                model.check(ledger)?;
            }
        } else if let Some(ledger) = &ledger {
            apply(ledger, &mut model, call)?;
        }
    }
    drop(ledger);
    let operations = disk.operations();
    let disk = end(&disk);
    let ledger = open(&disk).unwrap();
    prop_assert!(ledger.report().not_writable.is_none());
    model.check(&ledger)?;
    ledger.start(claim(99, 99), true).unwrap();
    drop(ledger);
    prop_assert!(
        open(&disk.power_cut(&mut |_| 0))
            .unwrap()
            .get("u99")
            .is_some()
    );
    Ok(operations)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sample::cases(250), ..ProptestConfig::default() })]

    #[test]
    fn nothing_answered_is_lost(
        calls in prop::collection::vec(call(), 1..25),
        at in 0..80u64, also in 0..30u64, count in prop_oneof![Just(1u64), Just(3), Just(u64::MAX)], seed: u64, power: bool,
    ) {
        let plan = Plan { at, count, kind: io::ErrorKind::StorageFull, also: if also == 0 { 0 } else { at + also } };
        let mut luck = dice(seed);
        run(&calls, Some(plan), |disk| if power { disk.power_cut(&mut luck) } else { disk.process_killed() })?;
    }
}

/// A normal sequence of calls, with each operation failing once and permanently, and with a power cut after each.
#[test]
fn every_operation_of_an_ordinary_life_may_fail() {
    let life = [
        Call::Start {
            uid: 0,
            device: 0,
            durable: false,
        },
        Call::Complete { uid: 0, payload: 1 },
        Call::Start {
            uid: 1,
            device: 1,
            durable: true,
        },
        Call::Complete { uid: 1, payload: 2 },
        Call::Compact,
        Call::Release { uid: 0 },
        Call::Start {
            uid: 2,
            device: 0,
            durable: false,
        },
        Call::Complete { uid: 2, payload: 3 },
        Call::Reopen,
        Call::Release { uid: 1 },
    ];
    let operations = run(&life, None, FaultyDisk::process_killed).unwrap() + 40;
    for at in (1..operations).step_by(sample::one_in().min(3)) {
        for count in [1, u64::MAX] {
            for seed in 0..2 {
                let mut luck = dice(at * 7919 + seed);
                let plan = Some(Plan {
                    at,
                    count,
                    kind: io::ErrorKind::Other,
                    also: 0,
                });
                run(&life, plan, |disk| disk.power_cut(&mut luck)).unwrap();
                run(&life, plan, FaultyDisk::process_killed).unwrap();
            }
        }
    }
}

#[test]
fn a_full_disk_refuses_records_until_there_is_space() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    ledger.start(claim(0, 0), false).unwrap();
    ledger.complete("u0", json!(1)).unwrap();
    disk.fail(Some(Plan {
        at: 1,
        count: u64::MAX,
        kind: io::ErrorKind::StorageFull,
        also: 0,
    }));
    let refused = ledger.start(claim(1, 1), true).unwrap_err().to_string();
    assert!(
        refused.contains("/state/ledger/journal-") && refused.contains("free some space"),
        "{refused}"
    );
    assert!(ledger.get("u1").is_none());
    assert!(matches!(ledger.release("u0"), Err(Error::Io { .. })));
    assert_eq!(ledger.get("u0").unwrap().state, Phase::Completed);
    assert!(ledger.report().not_writable.is_some());
    disk.fail(None);
    ledger.start(claim(1, 1), true).unwrap();
    ledger.release("u0").unwrap();
    assert!(ledger.report().not_writable.is_none());
    drop(ledger);
    let ledger = open(&disk.power_cut(&mut |_| 0)).unwrap();
    assert!(ledger.get("u0").is_none() && ledger.get("u1").is_some());
}

#[test]
fn a_quiet_ledger_becomes_writable_again_without_a_claim() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    disk.fail(Some(Plan {
        at: 1,
        count: 9,
        kind: io::ErrorKind::StorageFull,
        also: 0,
    }));
    assert!(ledger.start(claim(0, 0), true).is_err());
    assert!(ledger.compaction_due());
    assert!(ledger.compact().is_err());
    disk.fail(None);
    ledger.compact().unwrap();
    assert!(ledger.report().not_writable.is_none());
    assert!(!ledger.compaction_due());
}

#[test]
fn data_that_a_failed_sync_left_in_the_page_cache_is_not_read() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    // The write succeeds and the sync after it does not: readers of the file read a record that a power cut removes.
    disk.fail(Some(Plan {
        at: 2,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    assert!(ledger.start(claim(0, 0), true).is_err());
    assert!(ledger.get("u0").is_none());
    ledger.start(claim(1, 0), true).unwrap();
    drop(ledger);
    let ledger = open(&disk.process_killed()).unwrap();
    assert!(ledger.get("u0").is_none() && ledger.get("u1").is_some());
    drop(ledger);
    assert!(
        open(&disk.power_cut(&mut |_| 0))
            .unwrap()
            .get("u1")
            .is_some()
    );
}

#[test]
fn an_opening_after_a_kill_makes_durable_what_it_read() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    disk.fail(Some(Plan {
        at: 2,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    assert!(ledger.start(claim(0, 0), true).is_err());
    drop(ledger);
    // The next process reads u0 from the page cache, where it looks like any other record.
    let disk = disk.process_killed();
    let ledger = open(&disk).unwrap();
    let read = ledger.get("u0").is_some();
    drop(ledger);
    assert_eq!(
        open(&disk.power_cut(&mut |_| 0))
            .unwrap()
            .get("u0")
            .is_some(),
        read
    );
}

#[test]
fn a_completion_after_a_lost_start_reports_the_failed_disk() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    ledger.start(claim(0, 0), false).unwrap();
    disk.fail(Some(Plan {
        at: 1,
        count: 1,
        kind: io::ErrorKind::StorageFull,
        also: 0,
    }));
    assert!(ledger.start(claim(1, 1), true).is_err());
    assert!(matches!(
        ledger.complete("u0", json!(1)),
        Err(Error::Io { .. })
    ));
    ledger.start(claim(0, 0), false).unwrap();
    ledger.complete("u0", json!(1)).unwrap();
}

/// Threads that share syncs share failures too: each returned result holds, regardless of the thread that wrote it.
#[test]
fn threads_that_write_for_each_other_each_get_their_result() {
    for seed in 1..6u64 {
        let disk = FaultyDisk::default();
        let ledger = open(&disk).unwrap();
        let answers: Vec<BTreeMap<String, Option<bool>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6u64)
                .map(|thread| {
                    let (ledger, disk) = (&ledger, &disk);
                    scope.spawn(move || {
                        let mut luck = dice(seed * 100 + thread);
                        // true: returned as completed; false: returned as released; None: an error, so either.
                        let mut answers = BTreeMap::new();
                        for round in 0..40 {
                            let uid = format!("t{thread}-{}", round % 4);
                            if luck(6) == 0 {
                                let at = luck(6) as u64 + 1;
                                disk.fail(Some(Plan {
                                    at,
                                    count: luck(3) as u64 + 1,
                                    kind: io::ErrorKind::Other,
                                    also: 0,
                                }));
                            }
                            let entry = Entry {
                                uid: uid.clone(),
                                ..claim(0, 0)
                            };
                            let devices = vec![dra_ledger::HeldDevice {
                                device: uid.clone(),
                                ..entry.devices[0].clone()
                            }];
                            let entry = Entry { devices, ..entry };
                            let answer = if luck(3) == 0 {
                                ledger.release(&uid).map(|_| false)
                            } else {
                                ledger
                                    .start(entry, false)
                                    .and_then(|()| ledger.complete(&uid, json!(round)))
                                    .map(|()| true)
                            };
                            if luck(5) == 0 {
                                let _ = ledger.compact();
                            }
                            answers.insert(uid, answer.ok());
                        }
                        answers
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        drop(ledger);
        for image in [disk.power_cut(&mut |_| 0), disk.process_killed()] {
            let ledger = open(&image).unwrap();
            for (uid, answer) in answers.iter().flatten() {
                let found = ledger
                    .get(uid)
                    .is_some_and(|entry| entry.state == Phase::Completed);
                assert!(
                    answer.is_none_or(|completed| completed == found),
                    "seed {seed}: {uid} was {answer:?}, is {found}"
                );
            }
        }
    }
}

/// A disk with a claim `u0` whose release has failed and is still in the first journal.
fn disk_with_a_failed_release() -> FaultyDisk {
    let disk = FaultyDisk::default();
    let ledger = open(&disk).unwrap();
    ledger.start(claim(0, 0), false).unwrap();
    ledger.complete("u0", json!(1)).unwrap();
    // The sync of the release fails; so does, later, the removal of the journal that it was written to.
    disk.fail(Some(Plan {
        at: 2,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 12,
    }));
    assert!(ledger.release("u0").is_err());
    ledger.start(claim(1, 1), true).unwrap();
    assert_eq!(ledger.get("u0").unwrap().state, Phase::Completed);
    drop(ledger);
    let left = disk.process_killed();
    assert!(
        left.contents("/state/ledger/journal-00000001")
            .windows(9)
            .any(|text| text == b"\"release\"")
    );
    left
}

#[test]
fn a_failed_release_stays_failed_although_its_record_is_still_in_an_old_journal() {
    assert_eq!(
        open(&disk_with_a_failed_release())
            .unwrap()
            .get("u0")
            .unwrap()
            .state,
        Phase::Completed
    );
}

/// Both say which records the snapshot includes.
#[test]
fn a_failed_release_stays_failed_although_one_mark_of_the_snapshot_is_damaged() {
    const SNAPSHOT: &str = "/state/ledger/snapshot";
    let left = disk_with_a_failed_release();
    let snapshot = left.contents(SNAPSHOT);
    for (mark, offset) in [("first", 30), ("last", snapshot.len() - 30)] {
        let disk = left.process_killed();
        let mut damaged = snapshot.clone();
        damaged[offset] ^= 1;
        disk.plant(SNAPSHOT, &damaged);
        let ledger = open(&disk).unwrap();
        assert_eq!(ledger.report().damage.len(), 1);
        let found = ledger.get("u0").map(|entry| entry.state.clone());
        assert_eq!(found, Some(Phase::Completed), "the {mark} mark is damaged");
    }
}
