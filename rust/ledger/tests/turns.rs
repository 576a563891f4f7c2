//! Several processes on one ledger: one at a time, each knows what the others recorded, and a death in a turn is a crash.

#![allow(clippy::unwrap_used)]

mod faulty;
mod model;
mod sample;
mod watched;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dra_ledger::{Error, FileSystem, Ledger, Phase, Since};
use faulty::{FaultyDisk, Plan};
use model::{Call, Model, apply, call, claim, dice};
use proptest::prelude::*;
use serde_json::json;
use watched::{At, Paused};

const SOON: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_secs(10);

fn share(disk: &FaultyDisk, label: &str) -> Result<Ledger, Error> {
    Ledger::open_shared(
        Arc::new(disk.clone()),
        Path::new("/state"),
        "boot",
        label,
        SOON,
    )
}

fn share_dir(dir: &Path, label: &str) -> Ledger {
    Ledger::open_shared(Arc::new(FileSystem), dir, "boot", label, LATER).unwrap()
}

fn complete(ledger: &Ledger, uid: u8, device: u8) -> Result<(), Error> {
    ledger.start(claim(uid, device), false)?;
    ledger.complete(&format!("u{uid}"), json!(uid))
}

#[test]
fn each_sees_what_the_other_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (share_dir(dir.path(), "a"), share_dir(dir.path(), "b"));
    // Nobody has ended a turn here yet, so whoever comes first looks at everything.
    assert_eq!(a.take_turn(LATER).unwrap(), Since::Abandoned);
    complete(&a, 0, 0).unwrap();
    a.give_turn().unwrap();
    assert_eq!(a.take_turn(LATER).unwrap(), Since::Nothing);
    a.give_turn().unwrap();
    assert_eq!(b.take_turn(LATER).unwrap(), Since::Turns);
    assert_eq!(b.get("u0").unwrap().state, Phase::Completed);
    assert!(matches!(b.start(claim(1, 0), true), Err(Error::Held(_))));
    b.release("u0").unwrap();
    b.compact().unwrap();
    complete(&b, 1, 0).unwrap();
    b.give_turn().unwrap();
    assert_eq!(a.take_turn(LATER).unwrap(), Since::Turns);
    assert!(a.get("u0").is_none() && a.get("u1").is_some());
    complete(&a, 2, 1).unwrap();
    a.give_turn().unwrap();
    drop((a, b));
    let alone = Ledger::open(dir.path(), "boot").unwrap();
    assert_eq!(alone.entries().len(), 2);
    assert!(alone.report().damage.is_empty() && alone.report().lost_records == 0);
}

#[test]
fn nothing_changes_outside_a_turn() {
    let disk = FaultyDisk::default();
    let ledger = share(&disk, "a").unwrap();
    let before = disk.operations();
    assert!(matches!(
        ledger.start(claim(0, 0), true),
        Err(Error::Usage(_))
    ));
    assert!(matches!(ledger.release("u0"), Err(Error::Usage(_))));
    assert!(matches!(ledger.compact(), Err(Error::Usage(_))));
    assert!(matches!(ledger.give_turn(), Err(Error::Usage(_))));
    assert_eq!(disk.operations(), before);
    ledger.take_turn(SOON).unwrap();
    assert!(matches!(ledger.take_turn(SOON), Err(Error::Usage(_))));
    let alone = Ledger::open_on(Arc::new(FaultyDisk::default()), Path::new("/state"), "boot");
    assert!(matches!(
        alone.unwrap().take_turn(SOON),
        Err(Error::Usage(_))
    ));
}

#[test]
fn who_shares_and_who_does_not_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let shared = share_dir(dir.path(), "a");
    let refused = Ledger::open(dir.path(), "boot").unwrap_err().to_string();
    assert!(
        refused.contains(&format!("(pid {})", std::process::id())),
        "{refused}"
    );
    drop(shared);
    let _alone = Ledger::open(dir.path(), "boot").unwrap();
    let refused = Ledger::open_shared(Arc::new(FileSystem), dir.path(), "boot", "a", SOON);
    assert!(matches!(refused, Err(Error::Locked { .. })));
}

#[test]
fn a_turn_that_is_not_given_back_is_waited_for_and_its_holder_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (
        share_dir(dir.path(), "pod-a"),
        share_dir(dir.path(), "pod-b"),
    );
    a.take_turn(LATER).unwrap();
    assert!(!a.turn_wanted());
    let began = Instant::now();
    let refused = b.take_turn(SOON * 5).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }) && began.elapsed() >= SOON * 5);
    let told = refused.to_string();
    assert!(
        told.contains(&format!("pid {}, pod-a", std::process::id())),
        "{told}"
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(|| b.take_turn(LATER));
        while !a.turn_wanted() {
            thread::yield_now();
        }
        a.give_turn().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

/// flock(2) does not keep two threads of one process apart: both use the same open file.
#[test]
fn two_threads_of_a_process_never_both_have_the_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, other) = (share_dir(dir.path(), "a"), share_dir(dir.path(), "b"));
    for _ in 0..10 {
        other.take_turn(LATER).unwrap();
        let turns: Vec<Result<Since, Error>> = thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| ledger.take_turn(LATER)));
            while !other.turn_wanted() {
                thread::yield_now();
            }
            thread::sleep(SOON);
            other.give_turn().unwrap();
            both.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(turns.iter().filter(|turn| turn.is_ok()).count(), 1);
        assert!(
            turns
                .iter()
                .any(|turn| matches!(turn, Err(Error::Usage(_))))
        );
        ledger.give_turn().unwrap();
    }
}

#[test]
fn a_turn_ends_after_a_compaction_that_is_running() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Paused::new(At::RenameTo("snapshot")));
    let ledger = Ledger::open_shared(disk.clone(), dir.path(), "boot", "a", LATER).unwrap();
    let other = share_dir(dir.path(), "b");
    ledger.take_turn(LATER).unwrap();
    complete(&ledger, 0, 0).unwrap();
    disk.pause(true);
    thread::scope(|scope| {
        let compaction = scope.spawn(|| ledger.compact());
        disk.wait_until_paused();
        let (sender, ended) = mpsc::channel();
        let ledger = &ledger;
        scope.spawn(move || sender.send(ledger.give_turn()).unwrap());
        let early = ended.recv_timeout(SOON * 10);
        let entered = other.take_turn(SOON);
        disk.pause(false);
        assert!(
            early.is_err(),
            "the turn was given while files were being replaced"
        );
        assert!(matches!(entered, Err(Error::Busy { .. })), "{entered:?}");
        ended.recv().unwrap().unwrap();
        compaction.join().unwrap().unwrap();
        assert_eq!(other.take_turn(LATER).unwrap(), Since::Turns);
        assert_eq!(other.get("u0").unwrap().state, Phase::Completed);
    });
}

/// Whoever has just had a turn and wants another one comes after those who wait.
#[test]
fn nobody_is_starved() {
    let dir = tempfile::tempdir().unwrap();
    let turns: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    let ledgers: Vec<Ledger> = (0..3)
        .map(|n| share_dir(dir.path(), &n.to_string()))
        .collect();
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (ledger, taken) in ledgers.iter().zip(&turns) {
            let (turns, inside) = (&turns, &inside);
            scope.spawn(move || {
                while turns.iter().any(|taken| taken.load(Ordering::SeqCst) < 40) {
                    ledger.take_turn(LATER).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_micros(200));
                    taken.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    ledger.give_turn().unwrap();
                }
            });
        }
    });
    let most = turns.iter().map(|n| n.load(Ordering::SeqCst)).max();
    assert!(most < Some(400), "{turns:?}");
}

#[test]
fn a_start_that_nobody_waited_for_is_known_to_the_next() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.take_turn(SOON).unwrap();
    a.start(claim(0, 0), false).unwrap();
    a.give_turn().unwrap();
    b.take_turn(SOON).unwrap();
    assert!(matches!(b.start(claim(1, 0), true), Err(Error::Held(_))));
}

#[test]
fn a_death_in_a_turn_is_told_to_the_next_and_only_to_it() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    let c = share(&disk, "c").unwrap();
    a.take_turn(SOON).unwrap();
    a.start(claim(0, 0), true).unwrap();
    drop(a);
    assert_eq!(b.take_turn(SOON).unwrap(), Since::Abandoned);
    assert_eq!(b.get("u0").unwrap().state, Phase::Started);
    b.give_turn().unwrap();
    assert_eq!(c.take_turn(SOON).unwrap(), Since::Turns);
}

#[test]
fn an_opening_between_two_turns_hides_nothing_from_the_next() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.take_turn(SOON).unwrap();
    a.start(claim(0, 0), true).unwrap();
    a.give_turn().unwrap();
    drop(share(&disk, "c").unwrap());
    assert_eq!(b.take_turn(SOON).unwrap(), Since::Turns);
    b.give_turn().unwrap();
    a.take_turn(SOON).unwrap();
    a.start(claim(1, 1), true).unwrap();
    drop(a);
    drop(share(&disk, "d").unwrap());
    assert_eq!(b.take_turn(SOON).unwrap(), Since::Abandoned);
    assert!(b.get("u1").is_some());
}

#[test]
fn a_holder_is_named_as_far_as_it_is_known() {
    for (label, named) in [("", ""), ("pod a\n", ", poda")] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (share_dir(dir.path(), label), share_dir(dir.path(), "b"));
        a.take_turn(LATER).unwrap();
        let refused = b.take_turn(SOON).unwrap_err().to_string();
        let wanted = format!("another agent (pid {}{named}) for", std::process::id());
        assert!(refused.contains(&wanted), "{refused}");
    }
}

#[test]
fn who_cannot_write_leaves_it_to_the_next_who_can() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.take_turn(SOON).unwrap();
    complete(&a, 0, 0).unwrap();
    disk.fail(Some(Plan {
        at: 2,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    assert!(a.release("u0").is_err());
    disk.fail(None);
    a.give_turn().unwrap();
    assert_eq!(b.take_turn(SOON).unwrap(), Since::Abandoned);
    // The record whose sync failed is in the page cache: b made certain whatever it read there.
    let seen = b.get("u0").is_some();
    drop((a, b));
    let after = disk.power_cut(&mut |_| 0);
    assert_eq!(share(&after, "c").unwrap().get("u0").is_some(), seen);
}

#[derive(Clone, Debug)]
struct Step {
    who: usize,
    calls: Vec<Call>,
    dies: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (0..3usize, prop::collection::vec(call(), 0..4), 0..6u8).prop_map(|(who, calls, dies)| Step {
        who,
        calls,
        dies: dies == 0,
    })
}

/// Three processes take turns; each turn is a few calls, and may end in death. Whoever comes next sees what was answered.
fn play(steps: &[Step], plan: Option<Plan>, seed: u64) -> Result<(), TestCaseError> {
    let disk = FaultyDisk::default();
    let mut model = Model::default();
    let mut processes: Vec<Option<Ledger>> =
        (0..3).map(|n| share(&disk, &n.to_string()).ok()).collect();
    disk.fail(plan);
    for step in steps {
        let process = &mut processes[step.who];
        if process.is_none() {
            *process = share(&disk, "again").ok();
        }
        let Some(ledger) = process else { continue };
        match ledger.take_turn(SOON) {
            Err(_) => continue,
            // What a failed write left in the page cache may still come back if this process dies before it writes anew.
            Ok(Since::Nothing) => model.clone().check(ledger)?,
            Ok(_) => model.check(ledger)?,
        }
        for call in &step.calls {
            apply(ledger, &mut model, call)?;
        }
        if step.dies {
            *process = None;
        } else if ledger.give_turn().is_ok() && ledger.report().not_writable.is_none() {
            model.settle_all(ledger);
        }
    }
    drop(processes);
    disk.fail(None);
    let mut luck = dice(seed);
    for image in [disk.process_killed(), disk.power_cut(&mut luck)] {
        let ledger = share(&image, "last").unwrap();
        prop_assert!(ledger.report().not_writable.is_none());
        model.clone().check(&ledger)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sample::cases(400), ..ProptestConfig::default() })]

    #[test]
    fn the_truth_goes_from_turn_to_turn(
        steps in prop::collection::vec(step(), 1..14),
        at in 0..60u64, count in prop_oneof![Just(0u64), Just(1), Just(4)], seed: u64,
    ) {
        let plan = (count > 0).then_some(Plan { at, count, kind: io::ErrorKind::StorageFull, also: 0 });
        play(&steps, plan, seed)?;
    }
}
