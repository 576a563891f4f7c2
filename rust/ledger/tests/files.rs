//! The ledger's directory on a real file system: which files are its own, how large they grow, and what is refused.

#![allow(clippy::unwrap_used)]

mod faulty;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dra_ledger::{Disk, Entry, Error, FileSystem, Ledger};
use faulty::{FaultyDisk, Plan};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};

const KIB: usize = 1024;

fn claim(uid: &str, devices: Value) -> Entry {
    serde_json::from_value(
        json!({"uid": uid, "namespace": "team", "name": uid, "devices": devices}),
    )
    .unwrap()
}

fn gpu(uid: &str) -> Entry {
    claim(uid, json!([{"pool": "node/gpu", "device": uid}]))
}

fn open(dir: &Path) -> Ledger {
    Ledger::open(dir, "boot").unwrap()
}

fn in_memory(disk: &FaultyDisk) -> Result<Ledger, Error> {
    Ledger::open_on(Arc::new(disk.clone()), Path::new("/state"), "boot")
}

/// Records a completed claim whose record has about `size` bytes.
fn record(ledger: &Ledger, uid: &str, size: usize) {
    ledger.start(gpu(uid), false).unwrap();
    ledger.complete(uid, json!("x".repeat(size))).unwrap();
}

fn journals(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir.join("ledger"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("journal-"))
        .collect();
    names.sort();
    names
}

// === Sizes ===

#[test]
fn a_journal_owns_its_space_in_advance() {
    let dir = tempfile::tempdir().unwrap();
    let _ledger = open(dir.path());
    let journal = dir.path().join("ledger/journal-00000001");
    assert_eq!(fs::metadata(journal).unwrap().len(), 256 * 1024);
}

#[test]
fn a_compaction_is_due_at_half_of_that_space_and_done_before_all_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    record(&ledger, "a", 100 * KIB);
    assert!(!ledger.compaction_due());
    record(&ledger, "b", 100 * KIB);
    assert!(ledger.compaction_due());
    assert_eq!(journals(dir.path()), ["journal-00000001"]);
    record(&ledger, "c", 40 * KIB);
    assert_eq!(journals(dir.path()), ["journal-00000002"]);
    assert!(!ledger.compaction_due());
    drop(ledger);
    assert_eq!(open(dir.path()).entries().len(), 3);
}

#[test]
fn a_compaction_that_failed_is_due_again_after_as_much_again() {
    let disk = FaultyDisk::default();
    let ledger = in_memory(&disk).unwrap();
    record(&ledger, "a", 140 * KIB);
    assert!(ledger.compaction_due());
    disk.fail(Some(Plan {
        at: 1,
        count: u64::MAX,
        kind: io::ErrorKind::StorageFull,
        also: 0,
    }));
    assert!(matches!(ledger.compact(), Err(Error::Io { .. })));
    disk.fail(None);
    assert!(!ledger.compaction_due());
    record(&ledger, "b", 100 * KIB);
    assert!(!ledger.compaction_due());
    record(&ledger, "c", 40 * KIB);
    drop(ledger);
    assert_eq!(in_memory(&disk).unwrap().entries().len(), 3);
}

#[test]
fn a_record_has_a_mebibyte_at_most() {
    let disk = FaultyDisk::default();
    let ledger = in_memory(&disk).unwrap();
    ledger.start(gpu("a"), true).unwrap();
    let journal = || disk.contents("/state/ledger/journal-00000001");
    let end = |bytes: &[u8]| bytes.iter().rposition(|byte| *byte == b'\n').unwrap();
    let before = end(&journal());
    ledger.complete("a", json!("")).unwrap();
    // The claim's next record has the same size except its payload.
    let empty = end(&journal()) - before;
    let refused = ledger.complete("a", json!("x".repeat(KIB * KIB - empty + 1)));
    assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
    assert_eq!(ledger.get("a").unwrap().payload, json!(""));
    ledger
        .complete("a", json!("x".repeat(KIB * KIB - empty)))
        .unwrap();
}

/// A newer version may allow larger records; they can still be read.
#[test]
fn a_larger_record_of_another_version_is_kept() {
    let disk = FaultyDisk::default();
    let record =
        json!({"kind": "note", "seq": 1, "text": "x".repeat(3 * KIB * KIB / 2)}).to_string();
    let line = format!(
        "{:08x} {:08x} {record}\n",
        record.len(),
        crc32fast::hash(record.as_bytes())
    );
    disk.plant("/state/ledger/journal-00000001", line.as_bytes());
    let report = in_memory(&disk).unwrap().report();
    assert_eq!((report.foreign_records, report.damage.len()), (1, 0));
}

// === Names ===

#[test]
fn a_file_that_only_begins_like_records_is_not_a_ledger_of_another_version() {
    let disk = FaultyDisk::default();
    let contents = [
        "0000000a 00000000 [1]",
        "0000000g 00000000 {}",
        "0000000a-00000000 {}",
        "0000000a 0000000g {}",
        "0000000a 00000000-{}",
        "0000000a 00000000 ",
        "{\"kind\":\"claim\"}   ",
    ];
    for (number, text) in contents.iter().enumerate() {
        disk.plant(&format!("/state/ledger/notes-{number}"), text.as_bytes());
    }
    let ledger = in_memory(&disk).unwrap();
    ledger.compact().unwrap();
    for (number, text) in contents.iter().enumerate() {
        let path = format!("/state/ledger/notes-{number}");
        assert_eq!(disk.contents(&path), text.as_bytes());
    }
}

#[test]
fn a_name_that_is_almost_one_of_a_file_set_aside_is_refused() {
    for name in [
        "journal-00000001.corrupt-",
        "snapshot.corrupt-x",
        "snapshot.corrupt-1a",
    ] {
        let disk = FaultyDisk::default();
        disk.plant(&format!("/state/ledger/{name}"), b"");
        let refused = in_memory(&disk).unwrap_err();
        assert!(
            matches!(refused, Error::Unsupported { .. }),
            "{name}: {refused}"
        );
    }
}

#[test]
fn a_quarantined_file_is_not_read_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "a", 1);
    let ledger = dir.path().join("ledger");
    fs::copy(
        ledger.join("journal-00000001"),
        ledger.join("journal-00000001.corrupt-7"),
    )
    .unwrap();
    fs::copy(ledger.join("snapshot"), ledger.join("snapshot.corrupt-7")).unwrap();
    assert_eq!(open(dir.path()).entries().len(), 1);
    assert!(ledger.join("journal-00000001.corrupt-7").exists());
    assert!(ledger.join("snapshot.corrupt-7").exists());
}

#[test]
fn records_under_another_name_are_refused_and_what_cannot_be_read_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "a", 1);
    let ledger = dir.path().join("ledger");
    let fifo = ledger.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::create_dir(ledger.join("lost+found")).unwrap();
    assert_eq!(open(dir.path()).entries().len(), 1);
    fs::copy(ledger.join("journal-00000002"), ledger.join("claims")).unwrap();
    let refused = Ledger::open(dir.path(), "boot").unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
}

#[test]
fn damaged_files_are_set_aside_under_numbers_that_are_free() {
    let dir = tempfile::tempdir().unwrap();
    record(&open(dir.path()), "a", 1);
    let path = |name: &str| dir.path().join("ledger").join(name);
    for number in 1..=3 {
        let mut snapshot = fs::read(path("snapshot")).unwrap();
        snapshot[30] ^= 1;
        fs::write(path("snapshot"), &snapshot).unwrap();
        let name = format!("snapshot.corrupt-{number}");
        assert_eq!(open(dir.path()).report().set_aside, [name.as_str()]);
        assert_eq!(fs::read(path(&name)).unwrap(), snapshot);
    }
}

// === Refusals ===

fn refused_io(outcome: Result<Ledger, Error>, wanted: &str) {
    let refused = outcome.unwrap_err();
    assert!(matches!(refused, Error::Io { .. }), "{refused:?}");
    assert!(refused.to_string().contains(wanted), "{refused}");
}

#[test]
fn a_file_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("ledger/journal-00000001")).unwrap();
    refused_io(
        Ledger::open(dir.path(), "boot"),
        "journal-00000001: Is a directory",
    );
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("ledger/lock")).unwrap();
    refused_io(Ledger::open(dir.path(), "boot"), "ledger/lock: Is a dir");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    refused_io(
        Ledger::open(&dir.path().join("file/state"), "boot"),
        "file/state/ledger: Not a directory",
    );
}

#[test]
fn a_state_directory_that_cannot_be_made_durable_is_not_used() {
    let disk = FaultyDisk::default();
    disk.fail(Some(Plan {
        at: 1,
        count: 1,
        kind: io::ErrorKind::Other,
        also: 0,
    }));
    refused_io(in_memory(&disk), "cannot sync /state: ");
}

#[test]
fn a_refusal_has_a_hint_for_its_cause() {
    for (kind, advice) in [
        (io::ErrorKind::StorageFull, "free some space"),
        (io::ErrorKind::QuotaExceeded, "free some space"),
        (io::ErrorKind::ReadOnlyFilesystem, "file system writable"),
        (
            io::ErrorKind::PermissionDenied,
            "give the agent's user access",
        ),
        (io::ErrorKind::Other, "check the disk"),
    ] {
        let disk = FaultyDisk::default();
        let ledger = in_memory(&disk).unwrap();
        disk.fail(Some(Plan {
            at: 1,
            count: u64::MAX,
            kind,
            also: 0,
        }));
        let refused = ledger.start(gpu("a"), true).unwrap_err().to_string();
        assert!(refused.contains(advice), "{kind:?}: {refused}");
    }
}

/// These files of the kernel fail the operation, as a failing disk does.
#[test]
fn what_the_kernel_refuses_is_an_error() {
    let null = Path::new("/dev/null");
    assert!(FileSystem.create(null).unwrap().sync().is_err());
    assert!(FileSystem.open(null).unwrap().sync().is_err());
    let mut full = FileSystem.open(Path::new("/dev/full")).unwrap();
    assert!(full.write_at(b"record", 0).is_err());
    assert!(FileSystem.sync_dir(Path::new("/proc/self")).is_err());
    let missing = PathBuf::from("/dev/null/missing");
    assert!(FileSystem.link(&missing, &missing).is_err());
}
