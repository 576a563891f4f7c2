//! Several processes on one ledger: one at a time holds the lease and reads what the others recorded. A process that
//! exits with the lease counts as crashed.

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

use dra_ledger::{Disk, Error, FileSystem, LeaseHistory, Ledger, Phase};
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
    // No process has released the lease yet, so the first one reads the files as after a crash.
    assert_eq!(a.acquire_lease(LATER).unwrap(), LeaseHistory::Abandoned);
    complete(&a, 0, 0).unwrap();
    a.release_lease().unwrap();
    assert_eq!(a.acquire_lease(LATER).unwrap(), LeaseHistory::Unchanged);
    a.release_lease().unwrap();
    assert_eq!(b.acquire_lease(LATER).unwrap(), LeaseHistory::Released);
    assert_eq!(b.get("u0").unwrap().state, Phase::Completed);
    assert!(matches!(b.start(claim(1, 0), true), Err(Error::Held(_))));
    b.release("u0").unwrap();
    b.compact().unwrap();
    complete(&b, 1, 0).unwrap();
    b.release_lease().unwrap();
    assert_eq!(a.acquire_lease(LATER).unwrap(), LeaseHistory::Released);
    assert!(a.get("u0").is_none() && a.get("u1").is_some());
    complete(&a, 2, 1).unwrap();
    a.release_lease().unwrap();
    drop((a, b));
    let alone = Ledger::open(dir.path(), "boot").unwrap();
    assert_eq!(alone.entries().len(), 2);
    assert!(alone.report().damage.is_empty() && alone.report().lost_records == 0);
}

/// The name of such a journal may be lost in a power cut, with all that is written to it.
#[test]
fn a_journal_that_a_failed_compaction_left_behind_is_not_continued() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.acquire_lease(SOON).unwrap();
    complete(&a, 0, 0).unwrap();
    // The sync of the directory fails, and so does the removal of the new journal.
    disk.fail(Some(Plan {
        at: 4,
        count: 2,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    assert!(a.compact().is_err());
    disk.fail(None);
    a.release_lease().unwrap();
    let left = disk.list(Path::new("/state/ledger")).unwrap();
    let journals = left.iter().filter(|name| name.starts_with("journal-"));
    assert_eq!(journals.count(), 2, "{left:?}");
    assert_eq!(b.acquire_lease(SOON).unwrap(), LeaseHistory::Released);
    complete(&b, 1, 1).unwrap();
    b.release_lease().unwrap();
    drop((a, b));
    let after = share(&disk.power_cut(&mut |_| 0), "c").unwrap();
    assert_eq!(after.entries().len(), 2);
}

#[test]
fn nothing_changes_without_the_lease() {
    let disk = FaultyDisk::default();
    let ledger = share(&disk, "a").unwrap();
    let before = disk.operations();
    assert!(matches!(
        ledger.start(claim(0, 0), true),
        Err(Error::Usage(_))
    ));
    assert!(matches!(ledger.release("u0"), Err(Error::Usage(_))));
    assert!(matches!(ledger.compact(), Err(Error::Usage(_))));
    assert!(matches!(ledger.release_lease(), Err(Error::Usage(_))));
    assert_eq!(disk.operations(), before);
    ledger.acquire_lease(SOON).unwrap();
    assert!(matches!(ledger.acquire_lease(SOON), Err(Error::Usage(_))));
    let alone = Ledger::open_on(Arc::new(FaultyDisk::default()), Path::new("/state"), "boot");
    assert!(matches!(
        alone.unwrap().acquire_lease(SOON),
        Err(Error::Usage(_))
    ));
}

#[test]
fn shared_and_exclusive_openings_exclude_each_other() {
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
fn a_held_lease_is_waited_for_and_its_holder_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (
        share_dir(dir.path(), "pod-a"),
        share_dir(dir.path(), "pod-b"),
    );
    a.acquire_lease(LATER).unwrap();
    assert!(!a.is_lease_contended());
    let start = Instant::now();
    let refused = b.acquire_lease(SOON * 5).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }) && start.elapsed() >= SOON * 5);
    let message = refused.to_string();
    assert!(
        message.contains(&format!("pid {}, pod-a", std::process::id())),
        "{message}"
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(|| b.acquire_lease(LATER));
        while !a.is_lease_contended() {
            thread::yield_now();
        }
        a.release_lease().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

/// flock(2) does not exclude two threads of one process: both use the same open file.
#[test]
fn two_threads_of_a_process_never_both_hold_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, other) = (share_dir(dir.path(), "a"), share_dir(dir.path(), "b"));
    for _ in 0..10 {
        other.acquire_lease(LATER).unwrap();
        let leases: Vec<Result<LeaseHistory, Error>> = thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| ledger.acquire_lease(LATER)));
            while !other.is_lease_contended() {
                thread::yield_now();
            }
            thread::sleep(SOON);
            other.release_lease().unwrap();
            both.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(leases.iter().filter(|lease| lease.is_ok()).count(), 1);
        assert!(
            leases
                .iter()
                .any(|lease| matches!(lease, Err(Error::Usage(_))))
        );
        ledger.release_lease().unwrap();
    }
}

#[test]
fn a_lease_is_released_after_a_running_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Paused::new(At::RenameTo("snapshot")));
    let ledger = Ledger::open_shared(disk.clone(), dir.path(), "boot", "a", LATER).unwrap();
    let other = share_dir(dir.path(), "b");
    ledger.acquire_lease(LATER).unwrap();
    complete(&ledger, 0, 0).unwrap();
    disk.pause(true);
    thread::scope(|scope| {
        let compaction = scope.spawn(|| ledger.compact());
        disk.wait_until_paused();
        let (sender, ended) = mpsc::channel();
        let ledger = &ledger;
        scope.spawn(move || sender.send(ledger.release_lease()).unwrap());
        let early = ended.recv_timeout(SOON * 10);
        let entered = other.acquire_lease(SOON);
        disk.pause(false);
        assert!(
            early.is_err(),
            "the lease was released while files were being replaced"
        );
        assert!(matches!(entered, Err(Error::Busy { .. })), "{entered:?}");
        ended.recv().unwrap().unwrap();
        compaction.join().unwrap().unwrap();
        assert_eq!(other.acquire_lease(LATER).unwrap(), LeaseHistory::Released);
        assert_eq!(other.get("u0").unwrap().state, Phase::Completed);
    });
}

/// A process that has just released the lease acquires it again only after the processes that wait.
#[test]
fn no_process_is_starved() {
    let dir = tempfile::tempdir().unwrap();
    let leases: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    let ledgers: Vec<Ledger> = (0..3)
        .map(|n| share_dir(dir.path(), &n.to_string()))
        .collect();
    let holders = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (ledger, count) in ledgers.iter().zip(&leases) {
            let (leases, holders) = (&leases, &holders);
            scope.spawn(move || {
                while leases.iter().any(|count| count.load(Ordering::SeqCst) < 40) {
                    ledger.acquire_lease(LATER).unwrap();
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_micros(200));
                    count.fetch_add(1, Ordering::SeqCst);
                    holders.fetch_sub(1, Ordering::SeqCst);
                    ledger.release_lease().unwrap();
                }
            });
        }
    });
    let most = leases.iter().map(|n| n.load(Ordering::SeqCst)).max();
    assert!(most < Some(400), "{leases:?}");
}

#[test]
fn the_next_holder_reads_a_start_without_durable() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.acquire_lease(SOON).unwrap();
    a.start(claim(0, 0), false).unwrap();
    a.release_lease().unwrap();
    b.acquire_lease(SOON).unwrap();
    assert!(matches!(b.start(claim(1, 0), true), Err(Error::Held(_))));
}

#[test]
fn an_abandoned_lease_is_reported_to_the_next_holder_only() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    let c = share(&disk, "c").unwrap();
    a.acquire_lease(SOON).unwrap();
    a.start(claim(0, 0), true).unwrap();
    drop(a);
    assert_eq!(b.acquire_lease(SOON).unwrap(), LeaseHistory::Abandoned);
    assert_eq!(b.get("u0").unwrap().state, Phase::Started);
    b.release_lease().unwrap();
    assert_eq!(c.acquire_lease(SOON).unwrap(), LeaseHistory::Released);
}

#[test]
fn an_opening_between_two_leases_hides_nothing_from_the_next_holder() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.acquire_lease(SOON).unwrap();
    a.start(claim(0, 0), true).unwrap();
    a.release_lease().unwrap();
    drop(share(&disk, "c").unwrap());
    assert_eq!(b.acquire_lease(SOON).unwrap(), LeaseHistory::Released);
    b.release_lease().unwrap();
    a.acquire_lease(SOON).unwrap();
    a.start(claim(1, 1), true).unwrap();
    drop(a);
    drop(share(&disk, "d").unwrap());
    assert_eq!(b.acquire_lease(SOON).unwrap(), LeaseHistory::Abandoned);
    assert!(b.get("u1").is_some());
}

#[test]
fn a_holder_is_named_as_far_as_it_is_known() {
    for (label, named) in [("", ""), ("pod a\n", ", poda")] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (share_dir(dir.path(), label), share_dir(dir.path(), "b"));
        a.acquire_lease(LATER).unwrap();
        let refused = b.acquire_lease(SOON).unwrap_err().to_string();
        let expected = format!("another agent (pid {}{named}) for", std::process::id());
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[test]
fn a_holder_that_cannot_write_leaves_it_to_the_next_one() {
    let disk = FaultyDisk::default();
    let (a, b) = (share(&disk, "a").unwrap(), share(&disk, "b").unwrap());
    a.acquire_lease(SOON).unwrap();
    complete(&a, 0, 0).unwrap();
    disk.fail(Some(Plan {
        at: 2,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    assert!(a.release("u0").is_err());
    disk.fail(None);
    a.release_lease().unwrap();
    assert_eq!(b.acquire_lease(SOON).unwrap(), LeaseHistory::Abandoned);
    // The record whose sync failed is in the page cache: b made durable what it read there.
    let seen = b.get("u0").is_some();
    drop((a, b));
    let after = disk.power_cut(&mut |_| 0);
    assert_eq!(share(&after, "c").unwrap().get("u0").is_some(), seen);
}

#[derive(Clone, Debug)]
struct Step {
    process: usize,
    calls: Vec<Call>,
    exits: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (0..3usize, prop::collection::vec(call(), 0..4), 0..6u8).prop_map(|(process, calls, exits)| {
        Step {
            process,
            calls,
            exits: exits == 0,
        }
    })
}

/// Three processes hold the lease in turn for a few calls each, and may exit with it. The next holder reads all results
/// that were returned.
fn play(steps: &[Step], plan: Option<Plan>, seed: u64) -> Result<(), TestCaseError> {
    let disk = FaultyDisk::default();
    let mut model = Model::default();
    let mut processes: Vec<Option<Ledger>> =
        (0..3).map(|n| share(&disk, &n.to_string()).ok()).collect();
    disk.fail(plan);
    for step in steps {
        let process = &mut processes[step.process];
        if process.is_none() {
            *process = share(&disk, "again").ok();
        }
        let Some(ledger) = process else { continue };
        match ledger.acquire_lease(SOON) {
            Err(_) => continue,
            // What a failed write left in the page cache may be read again if this process exits before it rewrites the
            // files.
            Ok(LeaseHistory::Unchanged) => model.clone().check(ledger)?,
            Ok(_) => model.check(ledger)?,
        }
        for call in &step.calls {
            apply(ledger, &mut model, call)?;
        }
        if step.exits {
            *process = None;
        } else if ledger.release_lease().is_ok() && ledger.report().not_writable.is_none() {
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
    fn results_survive_each_change_of_the_holder(
        steps in prop::collection::vec(step(), 1..14),
        at in 0..60u64, count in prop_oneof![Just(0u64), Just(1), Just(4)], seed: u64,
    ) {
        let plan = (count > 0).then_some(Plan { at, count, kind: io::ErrorKind::StorageFull, also: 0 });
        play(&steps, plan, seed)?;
    }
}
