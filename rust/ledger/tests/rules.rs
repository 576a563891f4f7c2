//! Rules for holders of a device, stored fields, and the errors of each call.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use dra_ledger::{Entry, Error, Ledger, Phase};
use serde_json::{Value, json};

fn claim(uid: &str, devices: Value) -> Entry {
    serde_json::from_value(
        json!({"uid": uid, "namespace": "team", "name": uid, "devices": devices}),
    )
    .unwrap()
}

fn gpu(uid: &str) -> Entry {
    claim(uid, json!([{"pool": "node/gpu", "device": "gpu-0"}]))
}

fn open(dir: &Path) -> Ledger {
    Ledger::open(dir, "boot-1").unwrap()
}

#[test]
fn a_held_device_is_refused_and_the_holder_named() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.start(gpu("a"), true).unwrap();
    let refused = ledger.start(gpu("b"), true).unwrap_err().to_string();
    assert!(
        refused.contains("gpu-0") && refused.contains("team/a") && refused.contains("uid a"),
        "{refused}"
    );
    assert!(ledger.get("b").is_none());
    ledger.release("a").unwrap();
    ledger.start(gpu("b"), true).unwrap();
    assert_eq!(ledger.holders("node/gpu", "gpu-0")[0].uid, "b");
}

/// A host publishes the same devices in pools of another name after its own name changed.
#[test]
fn a_device_is_held_under_every_node_name_of_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let of = |uid: &str, pool: &str| claim(uid, json!([{"pool": pool, "device": "gpu-0"}]));
    ledger.start(of("a", "former/gpu"), true).unwrap();
    let refused = ledger.start(of("b", "node/gpu"), true);
    assert!(matches!(refused, Err(Error::Held(_))), "{refused:?}");
    assert_eq!(ledger.holders("node/gpu", "gpu-0")[0].uid, "a");
    ledger.start(of("c", "node/nic"), true).unwrap();
    let twice = claim(
        "d",
        json!([{"pool": "former/gpu", "device": "gpu-1"}, {"pool": "node/gpu", "device": "gpu-1"}]),
    );
    assert!(matches!(ledger.start(twice, true), Err(Error::Usage(_))));
}

#[test]
fn a_start_without_a_waiting_caller_holds_its_device_too() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.start(gpu("a"), false).unwrap();
    assert!(matches!(ledger.start(gpu("b"), true), Err(Error::Held(_))));
}

#[test]
fn shares_and_admin_access_live_side_by_side_and_one_share_twice_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let share = |uid: &str, id: Value, admin: bool| {
        claim(
            uid,
            json!([{"pool": "p", "device": "d", "share_id": id, "shared": true, "admin_access": admin}]),
        )
    };
    ledger.start(share("a", json!("s1"), false), true).unwrap();
    ledger.start(share("b", json!("s2"), false), true).unwrap();
    assert!(matches!(
        ledger.start(share("c", json!("s2"), false), true),
        Err(Error::Held(_))
    ));
    assert!(matches!(
        ledger.start(share("d", Value::Null, false), true),
        Err(Error::Held(_))
    ));
    ledger
        .start(share("watcher", Value::Null, true), true)
        .unwrap();
    assert_eq!(ledger.holders("p", "d").len(), 3);
    // Admin access does not exclude other claims either.
    ledger.release("a").unwrap();
    ledger.release("b").unwrap();
    ledger.start(share("d", Value::Null, false), true).unwrap();
}

#[test]
fn one_claim_cannot_name_a_device_twice_unless_by_shares() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let twice = json!([{"pool": "p", "device": "d", "request": "x"}, {"pool": "p", "device": "d", "request": "y"}]);
    assert!(matches!(
        ledger.start(claim("a", twice), true),
        Err(Error::Usage(_))
    ));
    let shares = json!([{"pool": "p", "device": "d", "share_id": "1"}, {"pool": "p", "device": "d", "share_id": "2"}]);
    ledger.start(claim("a", shares), true).unwrap();
}

#[test]
fn a_claim_may_have_devices_that_differ_in_pool_or_name() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let devices = json!([{"pool": "p", "device": "d"}, {"pool": "p", "device": "e"}, {"pool": "q", "device": "d"}]);
    ledger.start(claim("a", devices), true).unwrap();
    assert_eq!(ledger.holders("q", "d").len(), 1);
    // Only the device that both name decides whether their shares of it exclude each other.
    let mixed =
        json!([{"pool": "s", "device": "d", "share_id": "1"}, {"pool": "s", "device": "e"}]);
    ledger.start(claim("b", mixed), true).unwrap();
    let share = json!([{"pool": "s", "device": "d", "share_id": "2"}]);
    ledger.start(claim("c", share), true).unwrap();
}

#[test]
fn completed_claims_come_back_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let payload = json!({"cdi": ["x=y"], "text": "newline \n, quote \", nul \u{0}, é", "deep": {"a": [1, 2.5, null]}});
    {
        let ledger = open(dir.path());
        for uid in ["c", "a", "b"] {
            ledger
                .start(claim(uid, json!([{"pool": "p", "device": uid}])), false)
                .unwrap();
            ledger.complete(uid, payload.clone()).unwrap();
        }
        ledger.release("b").unwrap();
        ledger.start(claim("d", json!([])), true).unwrap();
    }
    let ledger = Ledger::open(dir.path(), "boot-2").unwrap();
    let found: Vec<_> = ledger
        .entries()
        .iter()
        .map(|e| (e.uid.clone(), e.state.clone()))
        .collect();
    let completed = Phase::Completed;
    assert_eq!(
        found,
        [
            ("a".into(), completed.clone()),
            ("c".into(), completed),
            ("d".into(), Phase::Started)
        ]
    );
    assert_eq!(ledger.get("a").unwrap().payload, payload);
    let report = ledger.report();
    assert_eq!(
        (report.claims, report.started, report.earlier_boot.len()),
        (3, vec!["d".to_owned()], 3)
    );
    ledger.complete("a", json!(null)).unwrap();
    assert_eq!(ledger.get("a").unwrap().boot_id, "boot-2");
    assert_eq!(ledger.get("c").unwrap().boot_id, "boot-1");
}

#[test]
fn a_record_that_could_not_be_read_back_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.start(gpu("a"), true).unwrap();
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    assert!(matches!(ledger.complete("a", deep), Err(Error::Usage(_))));
    assert!(matches!(
        ledger.complete("a", json!("x".repeat(2 << 20))),
        Err(Error::Usage(_))
    ));
    assert!(matches!(
        ledger.complete("ghost", json!(1)),
        Err(Error::Usage(_))
    ));
    assert!(matches!(ledger.start(gpu(""), true), Err(Error::Usage(_))));
    assert!(!ledger.release("ghost").unwrap());
    assert_eq!(ledger.get("a").unwrap().state, Phase::Started);
}

#[test]
fn a_prepared_claim_cannot_change_its_devices_and_may_be_started_again_with_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.start(gpu("a"), true).unwrap();
    ledger
        .start(claim("a", json!([{"pool": "p", "device": "other"}])), true)
        .unwrap();
    ledger.complete("a", json!(1)).unwrap();
    assert!(matches!(ledger.start(gpu("a"), true), Err(Error::Usage(_))));
    ledger
        .start(claim("a", json!([{"pool": "p", "device": "other"}])), true)
        .unwrap();
    assert!(ledger.holders("node/gpu", "gpu-0").is_empty());
}

#[test]
fn what_a_newer_version_wrote_survives_compaction_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let line = |json: &str| {
        format!(
            "{:08x} {:08x} {json}\n",
            json.len(),
            crc32fast::hash(json.as_bytes())
        )
    };
    let newer = [
        line(
            r#"{"seq":1,"kind":"claim","uid":"n","state":"parked","devices":[{"pool":"p","device":"d","numa":3}],"since":7}"#,
        ),
        line(r#"{"seq":2,"kind":"cordon","key":"gpu-0","until":"noon"}"#),
        line(r#"{"seq":3,"kind":"cordon","key":"gpu-0","until":"night"}"#),
        line(r#"{"seq":4,"kind":"note","text":"keep me"}"#),
        line(r#"{"seq":6,"kind":"cordon","key":"gpu-1","until":"dawn"}"#),
        line(r#"{"seq":7,"kind":"lease","key":"gpu-0","until":"dusk"}"#),
        line(r#"{"seq":8,"kind":"release","until":"never"}"#),
        line(r#"{"seq":9,"kind":"release","until":"ever"}"#),
        line(r#"{"seq":5,"kind":"claim","uid":["not","a","string"]}"#),
    ];
    fs::write(dir.path().join("ledger/journal-00000001"), newer.concat()).unwrap();
    for _ in 0..2 {
        let ledger = open(dir.path());
        ledger.compact().unwrap();
        assert_eq!(ledger.report().foreign_records, 7);
        assert_eq!(
            ledger.report().started,
            ["n"],
            "an unknown phase is not reported as prepared"
        );
        assert!(ledger.report().damage.is_empty());
        // It holds its device in an unknown phase too.
        assert!(matches!(
            ledger.start(claim("x", json!([{"pool": "p", "device": "d"}])), true),
            Err(Error::Held(_))
        ));
    }
    let snapshot = fs::read_to_string(dir.path().join("ledger/snapshot")).unwrap();
    for kept in [
        r#""state":"parked""#,
        r#""numa":3"#,
        r#""since":7"#,
        r#""until":"night""#,
        "keep me",
        "dawn",
        "dusk",
        "never",
        r#""ever""#,
        r#"["not","a","string"]"#,
    ] {
        assert!(snapshot.contains(kept), "{kept} is missing from {snapshot}");
    }
    assert!(
        !snapshot.contains("noon"),
        "of one key only the newest is kept"
    );
}

#[test]
fn a_second_opening_is_refused_and_names_the_first_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let refused = Ledger::open(dir.path(), "boot-1").unwrap_err().to_string();
    assert!(
        refused.contains(&format!("pid {}", std::process::id())),
        "{refused}"
    );
    drop(first);
    open(dir.path());
}

#[test]
fn compaction_keeps_the_files_small_and_forgets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    ledger.start(gpu("held"), false).unwrap();
    ledger.complete("held", json!({"kept": true})).unwrap();
    let big = json!("x".repeat(20_000));
    for round in 0..100 {
        let uid = format!("u{round}");
        ledger
            .start(claim(&uid, json!([{"pool": "p", "device": "d"}])), false)
            .unwrap();
        ledger.complete(&uid, big.clone()).unwrap();
        ledger.release(&uid).unwrap();
    }
    let sizes: Vec<u64> = fs::read_dir(dir.path().join("ledger"))
        .unwrap()
        .map(|f| f.unwrap().metadata().unwrap().len())
        .collect();
    assert!(sizes.iter().sum::<u64>() < 1 << 20, "{sizes:?}");
    assert_eq!(sizes.len(), 4, "lock, snapshot, one journal, reserve");
    assert!(!ledger.compaction_due() || ledger.compact().is_ok());
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.entries().len(), 1);
    assert_eq!(ledger.get("held").unwrap().payload, json!({"kept": true}));
}

#[test]
fn many_threads_record_at_once_while_another_compacts() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 25;
    let dir = tempfile::tempdir().unwrap();
    let ledger = Arc::new(open(dir.path()));
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (ledger, barrier) = (Arc::clone(&ledger), Arc::clone(&barrier));
            thread::spawn(move || {
                barrier.wait();
                for round in 0..ROUNDS {
                    let uid = format!("{thread}-{round}");
                    ledger
                        .start(claim(&uid, json!([{"pool": "p", "device": uid}])), false)
                        .unwrap();
                    ledger.complete(&uid, json!(round)).unwrap();
                    assert_eq!(ledger.get(&uid).unwrap().state, Phase::Completed);
                    if round % 2 == 1 {
                        assert!(ledger.release(&uid).unwrap());
                    }
                }
            })
        })
        .collect();
    barrier.wait();
    for _ in 0..5 {
        ledger.compact().unwrap();
    }
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    let ledger = Arc::into_inner(ledger).unwrap();
    let before: Vec<_> = ledger
        .entries()
        .iter()
        .map(|e| e.as_ref().clone())
        .collect();
    assert_eq!(before.len(), THREADS * ROUNDS.div_ceil(2));
    drop(ledger);
    let after: Vec<_> = open(dir.path())
        .entries()
        .iter()
        .map(|e| e.as_ref().clone())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn one_device_wanted_by_many_threads_goes_to_one() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Arc::new(open(dir.path()));
    let wins: usize = thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|n| {
                let ledger = Arc::clone(&ledger);
                scope.spawn(move || usize::from(ledger.start(gpu(&format!("u{n}")), true).is_ok()))
            })
            .collect();
        tries.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}
