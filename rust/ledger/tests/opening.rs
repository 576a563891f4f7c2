//! Opening a ledger where it is not writable, where a newer version wrote it, and where its directory is new.

#![allow(clippy::unwrap_used)]

mod claims;
mod faulty;
mod watched;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use claims::{claim, prepare, refuses_changes};
use dra_ledger::{Error, FileSystem, Ledger, Phase};
use faulty::FaultyDisk;
use watched::{Synced, Watched};

const STATE: &str = "/state";
const WAIT: Duration = Duration::from_secs(10);

fn line(json: &str) -> String {
    let crc = crc32fast::hash(json.as_bytes());
    format!("{:08x} {crc:08x} {json}\n", json.len())
}

// === Read-only ===

#[test]
fn on_a_read_only_disk_it_opens_knows_its_claims_and_refuses_changes() {
    let disk = FaultyDisk::default();
    let open = || Ledger::open_on(Arc::new(disk.clone()), Path::new(STATE), "boot");
    prepare(&open().unwrap(), "held", "gpu-0").unwrap();
    disk.remount(true);
    let ledger = open().unwrap();
    refuses_changes(&ledger);
    disk.remount(false);
    assert!(ledger.release("held").unwrap());
    assert!(ledger.report().not_writable.is_none());
}

#[test]
fn a_lease_on_a_read_only_disk_changes_nothing() {
    let disk = FaultyDisk::default();
    let open = |label| {
        Ledger::open_shared(
            Arc::new(disk.clone()),
            Path::new(STATE),
            "boot",
            label,
            WAIT,
        )
    };
    let writer = open("writer").unwrap();
    writer.acquire_lease(WAIT).unwrap();
    prepare(&writer, "held", "gpu-0").unwrap();
    writer.release_lease().unwrap();
    disk.remount(true);
    let reader = open("reader").unwrap();
    for ledger in [&writer, &reader, &writer] {
        ledger.acquire_lease(WAIT).unwrap();
        refuses_changes_with_lease(ledger);
        ledger.release_lease().unwrap();
    }
    reader.acquire_lease(WAIT).unwrap();
    disk.remount(false);
    prepare(&reader, "new", "gpu-1").unwrap();
    reader.release_lease().unwrap();
    writer.acquire_lease(WAIT).unwrap();
    assert_eq!(writer.get("new").unwrap().state, Phase::Completed);
    assert!(writer.release("held").unwrap());
}

fn refuses_changes_with_lease(ledger: &Ledger) {
    let refused = ledger.start(claim("new", "gpu-1"), true).unwrap_err();
    assert!(matches!(refused, Error::Io { .. }), "{refused}");
    assert!(matches!(ledger.release("held"), Err(Error::Io { .. })));
    assert_eq!(ledger.get("held").unwrap().state, Phase::Completed);
}

// === Formats ===

#[test]
fn a_format_that_is_not_known_is_refused_and_nothing_is_touched() {
    let claim = line(
        r#"{"kind":"claim","seq":1,"uid":"u","state":"completed","devices":[{"pool":"p","device":"d"}]}"#,
    );
    let newer = [
        (
            "snapshot",
            [
                line(r#"{"kind":"snapshot","format":2,"seq":1,"written_by":"dra-agent 9.1"}"#),
                claim.clone(),
                line(r#"{"kind":"end","format":2,"seq":1,"written_by":"dra-agent 9.1"}"#),
            ]
            .concat(),
        ),
        (
            "journal-00000003",
            [
                line(r#"{"kind":"journal","format":2,"seq":0,"written_by":"dra-agent 9.1"}"#),
                claim,
            ]
            .concat(),
        ),
        ("journal-00000003", line(r#"{"kind":"journal","seq":0}"#)),
        (
            "journal-00000003",
            line(r#"{"kind":"journal","format":"1","seq":0}"#),
        ),
    ];
    for (name, contents) in newer {
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("ledger");
        fs::create_dir(&ledger).unwrap();
        fs::write(ledger.join(name), &contents).unwrap();
        let refused = Ledger::open(dir.path(), "boot").unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
        let message = refused.to_string();
        assert!(
            message.contains(name) && message.contains("format"),
            "{message}"
        );
        if contents.contains("9.1") {
            assert!(
                message.contains("format 2") && message.contains("dra-agent 9.1"),
                "{message}"
            );
        }
        let refused = Ledger::open_shared(Arc::new(FileSystem), dir.path(), "boot", "a", WAIT);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
        assert_eq!(fs::read_to_string(ledger.join(name)).unwrap(), contents);
    }
}

#[test]
fn a_newer_format_that_appears_between_two_leases_ends_them() {
    let dir = tempfile::tempdir().unwrap();
    let open =
        |label| Ledger::open_shared(Arc::new(FileSystem), dir.path(), "boot", label, WAIT).unwrap();
    let (older, newer) = (open("older"), open("newer"));
    newer.acquire_lease(WAIT).unwrap();
    prepare(&newer, "held", "gpu-0").unwrap();
    newer.release_lease().unwrap();
    fs::write(dir.path().join("ledger/journal.v2-00000001"), b"\x02binary").unwrap();
    for _ in 0..2 {
        assert!(matches!(
            older.acquire_lease(WAIT),
            Err(Error::Unsupported { .. })
        ));
        assert!(matches!(
            older.start(claim("new", "gpu-0"), true),
            Err(Error::Usage(_))
        ));
    }
    fs::remove_file(dir.path().join("ledger/journal.v2-00000001")).unwrap();
    older.acquire_lease(WAIT).unwrap();
    assert!(matches!(
        older.start(claim("new", "gpu-0"), true),
        Err(Error::Held(_))
    ));
}

#[test]
fn a_ledger_file_of_another_name_is_refused() {
    let record = line(r#"{"kind":"claim","seq":1,"uid":"u","state":"completed","devices":[]}"#);
    let names = [
        ("journal.v2-00000001", "anything"),
        ("journal-v2-00000001", ""),
        ("snapshot.v2", "anything"),
        ("snapshot2", "anything"),
        ("claims", record.as_str()),
        ("journal-1", record.as_str()),
    ];
    for (name, contents) in names {
        let disk = FaultyDisk::default();
        disk.plant(&format!("/state/ledger/{name}"), contents.as_bytes());
        let refused =
            Ledger::open_on(Arc::new(disk.clone()), Path::new(STATE), "boot").unwrap_err();
        assert!(
            matches!(refused, Error::Unsupported { .. }),
            "{name}: {refused:?}"
        );
        assert!(refused.to_string().contains(name), "{refused}");
        assert_eq!(
            disk.contents(&format!("/state/ledger/{name}")),
            contents.as_bytes()
        );
    }
}

// === Directories ===

#[test]
fn every_directory_that_is_created_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched(Arc::new(Synced::default())));
    let state = dir.path().join("var/lib/agent");
    drop(Ledger::open_on(disk.clone(), &state, "boot").unwrap());
    let synced = disk.0.0.lock().unwrap().clone();
    for parent in [
        "",
        "var",
        "var/lib",
        "var/lib/agent",
        "var/lib/agent/ledger",
    ] {
        let parent = if parent.is_empty() {
            dir.path().to_owned()
        } else {
            dir.path().join(parent)
        };
        assert!(
            synced.contains(&parent),
            "{} in {synced:?}",
            parent.display()
        );
    }
}
