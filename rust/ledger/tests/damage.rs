//! After any damage to a file, the ledger opens and only the damaged records are lost.

#![allow(clippy::unwrap_used)]

mod faulty;
mod sample;

use std::path::Path;
use std::sync::Arc;

use dra_ledger::{Entry, Ledger};
use faulty::FaultyDisk;
use serde_json::json;

const CLAIMS: usize = 4;
const JOURNAL: &str = "/state/ledger/journal-00000001";

fn claim(number: usize) -> Entry {
    serde_json::from_value(json!({
        "uid": format!("uid-{number}"), "namespace": "default", "name": format!("claim-{number}"),
        "devices": [{"pool": "node/gpu", "device": format!("gpu-{number}"), "request": "gpu"}],
    }))
    .unwrap()
}

fn open(disk: &FaultyDisk) -> Ledger {
    Ledger::open_on(Arc::new(disk.clone()), Path::new("/state"), "boot").unwrap()
}

fn uids(ledger: &Ledger) -> Vec<String> {
    ledger
        .entries()
        .iter()
        .map(|entry| entry.uid.clone())
        .collect()
}

/// A disk whose journal holds one completed claim after another.
fn journalled() -> FaultyDisk {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    for number in 0..CLAIMS {
        ledger.start(claim(number), false).unwrap();
        ledger
            .complete(&format!("uid-{number}"), json!({"n": number}))
            .unwrap();
    }
    disk
}

fn used(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len())
}

/// Ends of the records in `bytes`.
fn ends(bytes: &[u8]) -> Vec<usize> {
    bytes[..used(bytes)]
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect()
}

fn with_contents(name: &str, contents: &[u8]) -> FaultyDisk {
    let disk = FaultyDisk::default();
    disk.plant(&format!("/state/ledger/{name}"), contents);
    disk
}

#[test]
fn a_journal_cut_at_any_byte_keeps_every_record_before_the_cut() {
    let whole = journalled().contents(JOURNAL);
    let ends = ends(&whole);
    for cut in (0..=used(&whole)).step_by(sample::one_in()) {
        // Cut short, and cut with the preallocated space after it.
        for zeros in [0, 64] {
            let mut torn = whole[..cut].to_vec();
            torn.resize(cut + zeros, 0);
            let disk = with_contents("journal-00000001", &torn);
            let ledger = open(&disk);
            // The header, then two records for each claim; the last newline is not needed.
            let sound = ends.iter().filter(|end| **end <= cut + 1).count();
            let expected: Vec<String> = (0..CLAIMS)
                .filter(|n| sound >= 2 + 2 * n)
                .map(|n| format!("uid-{n}"))
                .collect();
            assert_eq!(uids(&ledger), expected, "cut at {cut}");
            let report = ledger.report();
            assert!(
                report.set_aside.is_empty(),
                "a torn tail is not corruption: {report:?}"
            );
            assert!(
                report
                    .damage
                    .iter()
                    .all(|damage| damage.kind == "torn tail")
            );
            assert_eq!(report.lost_records, 0);
        }
    }
}

#[test]
fn one_wrong_byte_in_a_journal_costs_no_claim() {
    // Every claim has two records, its start and its completion, and any single byte belongs to one of them.
    let whole = journalled().contents(JOURNAL);
    for at in (0..used(&whole) + 8).step_by(sample::one_in()) {
        for flip in [0x01, whole[at] ^ b'\n', whole[at]] {
            // The newline at the end is not needed, and a byte xor 0 is unchanged.
            if flip == 0 || (at + 1 == used(&whole) && flip == whole[at]) {
                continue;
            }
            let mut bytes = whole[..used(&whole) + 64].to_vec();
            bytes[at] ^= flip;
            let disk = with_contents("journal-00000001", &bytes);
            let ledger = open(&disk);
            assert_eq!(
                uids(&ledger).len(),
                CLAIMS,
                "byte {at} ^ {flip:#x}: {:?}",
                ledger.report()
            );
            assert!(
                !ledger.report().damage.is_empty(),
                "byte {at} ^ {flip:#x} went unnoticed"
            );
            ledger.start(claim(9), true).unwrap();
        }
    }
}

/// A frame that no newline precedes is found by its length and its checksum.
#[test]
fn damage_across_the_end_of_a_record_costs_only_the_records_it_hit() {
    let disk = FaultyDisk::default();
    let started = open(&disk);
    for number in 0..CLAIMS {
        started.start(claim(number), true).unwrap();
    }
    let whole = disk.contents(JOURNAL);
    let whole = &whole[..used(&whole)];
    let ends = ends(whole);
    assert_eq!(
        ends.len(),
        1 + CLAIMS,
        "a header, and a record of each claim"
    );
    for (hit, end) in ends[1..].iter().enumerate() {
        let expected: Vec<String> = (0..CLAIMS)
            .filter(|number| *number != hit)
            .map(|number| format!("uid-{number}"))
            .collect();
        let from = end - 3;
        let kinds: [(&str, &[u8]); 5] = [
            ("other bytes", b"\x01\x02\x03"),
            ("zeros", &[0; 3]),
            ("nothing", b""),
            ("the start of a frame", b"000000"),
            (
                "a frame of a record that is longer than the file",
                b"0000ffff 00000000 {",
            ),
        ];
        for (what, bytes) in kinds {
            let damaged = [&whole[..from], bytes, &whole[*end..], &[0; 64]].concat();
            let ledger = open(&with_contents("journal-00000001", &damaged));
            assert_eq!(
                uids(&ledger),
                expected,
                "{what} in place of bytes {from} to {end}: {:?}",
                ledger.report()
            );
            let report = ledger.report();
            assert_eq!(report.damage.len(), 1, "{what}: {report:?}");
        }
    }
}

#[test]
fn one_wrong_byte_in_a_snapshot_costs_at_most_the_claim_it_hit() {
    let disk = journalled();
    open(&disk).compact().unwrap();
    let whole = disk.contents("/state/ledger/snapshot");
    for at in (0..whole.len()).step_by(sample::one_in()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x04;
        let disk = with_contents("snapshot", &bytes);
        let ledger = open(&disk);
        let line = whole[..at].iter().filter(|byte| **byte == b'\n').count();
        let expected: Vec<String> = (0..CLAIMS)
            .filter(|n| n + 1 != line || whole[at] == b'\n')
            .map(|n| format!("uid-{n}"))
            .collect();
        assert_eq!(uids(&ledger), expected, "byte {at}");
        let report = ledger.report();
        assert_eq!(report.damage.len(), 1, "byte {at}: {report:?}");
        assert_eq!(report.set_aside, ["snapshot.corrupt-1"]);
        assert_eq!(disk.contents("/state/ledger/snapshot.corrupt-1"), bytes);
    }
}

#[test]
fn a_snapshot_cut_at_any_byte_keeps_what_is_before_the_cut() {
    let disk = journalled();
    open(&disk).compact().unwrap();
    let whole = disk.contents("/state/ledger/snapshot");
    let ends = ends(&whole);
    for cut in (0..whole.len()).step_by(sample::one_in()) {
        let disk = with_contents("snapshot", &whole[..cut]);
        let sound = ends.iter().filter(|end| **end <= cut + 1).count();
        assert_eq!(
            uids(&open(&disk)).len(),
            sound.saturating_sub(1).min(CLAIMS),
            "cut at {cut}"
        );
    }
}

#[test]
fn the_claim_of_a_damaged_record_is_named_when_it_can_be() {
    let disk = journalled();
    open(&disk).compact().unwrap();
    let whole = disk.contents("/state/ledger/snapshot");
    let text = String::from_utf8(whole)
        .unwrap()
        .replace("claim-2", "claim-X");
    let disk = with_contents("snapshot", text.as_bytes());
    let report = open(&disk).report();
    assert_eq!(report.damage[0].uid.as_deref(), Some("uid-2"));
    assert_eq!(report.damage[0].kind, "damaged record");
}

#[test]
fn a_damaged_journal_is_set_aside_once_and_the_next_opening_is_clean() {
    let disk = journalled();
    let mut bytes = disk.contents(JOURNAL);
    let middle = ends(&bytes)[2] + 30;
    bytes[middle] ^= 0xff;
    disk.plant(JOURNAL, &bytes);
    let report = open(&disk).report();
    assert_eq!(report.set_aside, ["journal-00000001.corrupt-1"]);
    assert_eq!(report.lost_records, 1);
    assert_eq!(
        disk.contents("/state/ledger/journal-00000001.corrupt-1"),
        bytes
    );
    let again = open(&disk);
    assert_eq!(uids(&again).len(), CLAIMS);
    assert!(again.report().damage.is_empty() && again.report().set_aside.is_empty());
}

#[test]
fn a_lost_release_is_proved_by_the_claim_that_took_the_device() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    ledger.start(claim(0), true).unwrap();
    ledger.release("uid-0").unwrap();
    ledger
        .start(
            Entry {
                uid: "later".into(),
                ..claim(0)
            },
            true,
        )
        .unwrap();
    drop(ledger);
    let mut bytes = disk.contents(JOURNAL);
    let release = ends(&bytes)[1] + 20;
    bytes[release] ^= 0xff;
    disk.plant(JOURNAL, &bytes);
    let ledger = open(&disk);
    assert_eq!(uids(&ledger), ["later"]);
    assert_eq!(ledger.report().superseded[0].uid, "uid-0");
    assert_eq!(ledger.report().superseded[0].by, "later");
}

#[test]
fn noise_in_place_of_files_opens_empty_and_is_kept() {
    let noise: Vec<u8> = (0..5000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    for contents in [
        &noise[..],
        b"{}\n",
        b"ffffffff 00000000 {}\n",
        b"00000000 00000000 \n",
        "\u{feff}\n".as_bytes(),
    ] {
        let disk = with_contents("snapshot", contents);
        disk.plant("/state/ledger/journal-00000007", contents);
        let ledger = open(&disk);
        assert!(ledger.entries().is_empty());
        ledger.start(claim(0), true).unwrap();
        drop(ledger);
        assert_eq!(uids(&open(&disk)), ["uid-0"]);
    }
}

#[test]
fn files_that_are_not_the_ledgers_are_left_alone() {
    let disk = journalled();
    for name in [
        "journal-1",
        "journal-",
        "journal-00000001.corrupt-3",
        "notes.txt",
    ] {
        disk.plant(&format!("/state/ledger/{name}"), b"mine");
    }
    open(&disk).compact().unwrap();
    for name in [
        "journal-1",
        "journal-",
        "journal-00000001.corrupt-3",
        "notes.txt",
    ] {
        assert_eq!(disk.contents(&format!("/state/ledger/{name}")), b"mine");
    }
}

// === Several files and several damages ===

fn prepare(ledger: &Ledger, number: usize) {
    ledger.start(claim(number), false).unwrap();
    ledger
        .complete(&format!("uid-{number}"), json!({"n": number}))
        .unwrap();
}

/// Journals as a compaction leaves them that was killed before its snapshot: the second continues where the first ends.
fn two_journals(first: &[u8], disk: &FaultyDisk) {
    let sound = journalled();
    let ledger = open(&sound);
    ledger.compact().unwrap();
    prepare(&ledger, 8);
    let number = (2..9)
        .find(|number| ledger_has(&sound, *number))
        .expect("a journal after the first");
    let second = sound.contents(&format!("/state/ledger/journal-{number:08}"));
    disk.plant(JOURNAL, first);
    disk.plant("/state/ledger/journal-00000002", &second);
}

fn ledger_has(disk: &FaultyDisk, number: usize) -> bool {
    let name = format!("journal-{number:08}");
    let listed = dra_ledger::Disk::list(disk, Path::new("/state/ledger")).unwrap();
    listed.contains(&name)
}

#[test]
fn sound_journals_are_read_one_after_the_other() {
    let disk = FaultyDisk::default();
    two_journals(&journalled().contents(JOURNAL), &disk);
    let ledger = open(&disk);
    assert_eq!(uids(&ledger).len(), CLAIMS + 1);
    let report = ledger.report();
    assert!(report.damage.is_empty() && report.set_aside.is_empty());
    assert_eq!(report.lost_records, 0);
}

/// Records in a later file prove that the end of an earlier one was written whole once.
#[test]
fn a_damaged_end_is_a_torn_tail_only_where_nothing_follows() {
    let whole = journalled().contents(JOURNAL);
    let torn = &whole[..used(&whole) - 20];
    let disk = FaultyDisk::default();
    two_journals(torn, &disk);
    let ledger = open(&disk);
    let report = ledger.report();
    assert_eq!(report.damage.len(), 1);
    assert_eq!(report.damage[0].kind, "damaged record");
    assert_eq!(report.set_aside, ["journal-00000001.corrupt-1"]);
    assert_eq!(report.lost_records, 1);

    let report = open(&with_contents("journal-00000001", torn)).report();
    assert_eq!(report.damage[0].kind, "torn tail");
    assert!(report.set_aside.is_empty());
}

#[test]
fn each_damage_of_several_is_reported_for_what_it_is() {
    let disk = journalled();
    open(&disk).compact().unwrap();
    let mut snapshot = disk.contents("/state/ledger/snapshot");
    snapshot[30] ^= 1;
    let whole = journalled().contents(JOURNAL);
    let mut journal = whole[..used(&whole) - 20].to_vec();
    let middle = ends(&whole)[1] + 30;
    journal[middle] ^= 1;
    let disk = with_contents("snapshot", &snapshot);
    disk.plant(JOURNAL, &journal);
    let found: Vec<(String, &str)> = open(&disk)
        .report()
        .damage
        .into_iter()
        .map(|damage| (damage.file, damage.kind))
        .collect();
    let journal = "journal-00000001".to_owned();
    assert_eq!(
        found,
        [
            ("snapshot".to_owned(), "damaged record"),
            (journal.clone(), "damaged record"),
            (journal, "torn tail"),
        ]
    );
}

#[test]
fn damage_of_adjacent_records_is_one_damage() {
    let whole = journalled().contents(JOURNAL);
    let ends = ends(&whole);
    let mut bytes = whole.clone();
    for start in [ends[1], ends[2]] {
        bytes[start + 30] ^= 1;
    }
    let report = open(&with_contents("journal-00000001", &bytes)).report();
    let ranges: Vec<(usize, usize)> = report
        .damage
        .iter()
        .map(|damage| (damage.offset, damage.length))
        .collect();
    assert_eq!(ranges, [(ends[1], ends[3] - ends[1])]);
}

#[test]
fn damage_that_took_nothing_of_a_claim_does_not_name_it() {
    let mut bytes = journalled().contents(JOURNAL);
    let start = ends(&bytes)[0] + 30;
    bytes[start] ^= 1;
    let report = open(&with_contents("journal-00000001", &bytes)).report();
    assert_eq!(report.damage[0].kind, "damaged record");
    assert_eq!(report.damage[0].uid, None, "its completion is there");
}

#[test]
fn a_copy_of_an_older_record_changes_nothing() {
    let disk = FaultyDisk::default();
    let ledger = open(&disk);
    ledger.start(claim(0), false).unwrap();
    ledger.release("uid-0").unwrap();
    ledger.start(claim(0), false).unwrap();
    ledger.start(claim(1), false).unwrap();
    ledger.release("uid-1").unwrap();
    let whole = disk.contents(JOURNAL);
    let ends = ends(&whole);
    for pair in ends.windows(2) {
        for end in &ends[1..] {
            let mut bytes = whole.clone();
            bytes.splice(end..end, whole[pair[0]..pair[1]].iter().copied());
            let opened = open(&with_contents("journal-00000001", &bytes));
            assert_eq!(uids(&opened), ["uid-0"], "{pair:?} was copied to {end}");
            assert_eq!(opened.report().lost_records, 0);
        }
    }
}
