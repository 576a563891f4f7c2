//! Damaged journals and snapshots: a history of claims, then damage to its files.
//!
//! An input is a program: bytes for events of claims up to a byte 0xff, followed by bytes for damage.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dra_ledger::{Disk, Entry, Error, Ledger};
use serde_json::{Map, Value, json};

use crate::Target;

#[path = "../../../ledger/tests/faulty/mod.rs"]
mod faulty;

use faulty::{FaultyDisk, without_zeros};

pub const TARGET: Target = Target {
    name: "ledger",
    check,
    heap_bytes: 64 << 20,
    cpu: Duration::from_secs(5),
};

const STATE: &str = "/state";
const FOLDER: &str = "/state/ledger";
const BOOT: &str = "boot";
const CLAIMS: u8 = 6;
const DEVICES: u8 = 4;
const MAX_STEPS: usize = 24;
const END_OF_HISTORY: u8 = 0xff;
/// "LLLLLLLL CCCCCCCC "
const FRAME: usize = 18;

/// The files of a ledger, by name.
type Files = BTreeMap<String, Vec<u8>>;

thread_local! {
    /// The files of histories that were checked. A history takes longer than its damage, and inputs share histories.
    static HISTORIES: RefCell<BTreeMap<Vec<u8>, Files>> = const { RefCell::new(BTreeMap::new()) };
}

const MAX_HISTORIES: usize = 1024;

/// The offset of the first byte that damages the files. `None` if the whole input is history.
pub fn damage_at(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    for _ in 0..MAX_STEPS {
        let step = *data.get(at)?;
        at += 1;
        if step == END_OF_HISTORY {
            break;
        }
        // The devices of a claim.
        at += usize::from(step % 8 <= 2);
    }
    (at <= data.len()).then_some(at)
}

fn check(data: &[u8]) {
    let (history, damage) = data.split_at(damage_at(data).unwrap_or(data.len()));
    let known = HISTORIES.with_borrow(|histories| histories.get(history).cloned());
    let files = known.unwrap_or_else(|| {
        let files = check_history(history);
        HISTORIES.with_borrow_mut(|histories| {
            if histories.len() >= MAX_HISTORIES {
                histories.clear();
            }
            histories.insert(history.to_vec(), files.clone());
        });
        files
    });
    check_damage(files, damage);
}

fn check_history(program: &[u8]) -> Files {
    let mut steps = program.iter().copied();
    let disk = history(&mut steps);
    assert_eq!(steps.next(), None, "a step is taken for damage");
    let mut files = BTreeMap::new();
    for name in disk.list(Path::new(FOLDER)).expect("a folder") {
        if name == "snapshot" || name.starts_with("journal-") {
            files.insert(name.clone(), disk.contents(&format!("{FOLDER}/{name}")));
        }
    }
    let expected = open(&disk).expect("an undamaged ledger").entries();
    assert_eq!(
        expected
            .iter()
            .map(|entry| entry.uid.as_str())
            .collect::<BTreeSet<_>>(),
        proven(&files).keys().map(String::as_str).collect(),
        "the claims of undamaged files"
    );
    files
}

fn check_damage(mut files: Files, program: &[u8]) {
    damage(&mut files, &mut program.iter().copied());
    let damaged = FaultyDisk::thrifty();
    for (name, bytes) in &files {
        damaged.plant(&format!("{FOLDER}/{name}"), bytes);
    }
    let ledger = match open(&damaged) {
        Ok(ledger) => ledger,
        Err(Error::Unsupported { .. }) => return,
        Err(error) => panic!("a damaged ledger does not open: {error}"),
    };
    let found: BTreeMap<String, Value> = ledger
        .entries()
        .iter()
        .map(|entry| written(entry))
        .collect();
    let proven = proven(&files);
    for (uid, entry) in &proven {
        assert_eq!(
            found.get(uid),
            Some(entry),
            "claim {uid}, which an undamaged record proves: {:?}",
            ledger.report()
        );
    }
    let records: Vec<Value> = files
        .values()
        .flat_map(|bytes| records(bytes))
        .map(|record| record.entry)
        .collect();
    for (uid, entry) in &found {
        assert!(
            records.contains(entry),
            "claim {uid} is in no record: {entry}"
        );
    }
    check_alone(&ledger.entries());
    drop(ledger);
    let again = open(&damaged.process_killed()).expect("a ledger that was opened once");
    let kept: BTreeMap<String, Value> =
        again.entries().iter().map(|entry| written(entry)).collect();
    assert_eq!(kept, found, "the second opening finds other claims");
    assert!(
        again.report().damage.is_empty(),
        "the second opening finds damage: {:?}",
        again.report()
    );
}

fn open(disk: &FaultyDisk) -> Result<Ledger, Error> {
    Ledger::open_on(Arc::new(disk.clone()), Path::new(STATE), BOOT)
}

fn written(entry: &Entry) -> (String, Value) {
    (
        entry.uid.clone(),
        serde_json::to_value(entry).expect("it is JSON"),
    )
}

/// Claims start, complete and are released, the ledger is compacted, and its process is killed.
fn history(program: &mut impl Iterator<Item = u8>) -> FaultyDisk {
    let mut disk = FaultyDisk::thrifty();
    let mut ledger = open(&disk).expect("a new ledger");
    for _ in 0..MAX_STEPS {
        let Some(step) = program.next().filter(|step| *step != END_OF_HISTORY) else {
            break;
        };
        let uid = format!("uid-{}", (step >> 3) % CLAIMS);
        // A rejected call is valid too.
        match step % 8 {
            0..=2 => {
                let devices = program.next().unwrap_or(1);
                let _ = ledger.start(claim(&uid, devices), false);
            }
            3 | 4 => {
                let _ = ledger.complete(&uid, json!({"step": step}));
            }
            5 => {
                let _ = ledger.release(&uid);
            }
            6 => {
                let _ = ledger.compact();
            }
            _ => {
                drop(ledger);
                disk = disk.process_killed();
                ledger = open(&disk).expect("an undamaged ledger");
            }
        }
    }
    drop(ledger);
    disk.process_killed()
}

fn claim(uid: &str, devices: u8) -> Entry {
    let held: Vec<Value> = (0..DEVICES)
        .filter(|bit| devices & (1 << bit) != 0)
        .map(|bit| {
            let share = (devices & 0x40 != 0).then(|| format!("share-{uid}"));
            json!({"pool": "node/gpu", "device": format!("gpu-{bit}"), "share_id": share, "admin_access": devices & 0x80 != 0})
        })
        .collect();
    serde_json::from_value(
        json!({"uid": uid, "namespace": "default", "name": uid, "devices": held}),
    )
    .expect("an entry")
}

/// Damages the files. Each change has a byte for its kind, one for the file, two for the offset, and its arguments.
fn damage(files: &mut Files, program: &mut impl Iterator<Item = u8>) {
    for _ in 0..MAX_STEPS {
        let (Some(kind), Some(file)) = (program.next(), program.next()) else {
            return;
        };
        let mut next = || usize::from(program.next().unwrap_or(0));
        let count = files.len();
        let Some(bytes) = files.values_mut().nth(usize::from(file) % count.max(1)) else {
            return;
        };
        // Preallocated space contains zeros: offsets are in the used part, and slightly beyond.
        let reach = (without_zeros(bytes) + 32).min(bytes.len()).max(1);
        let at = ((next() << 8) | next()) % reach;
        let length = next() % 64;
        let end = (at + length).min(bytes.len());
        match kind % 6 {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= u8::try_from(length.max(1)).unwrap_or(1);
                }
            }
            1 => bytes
                .get_mut(at..end)
                .into_iter()
                .for_each(|range| range.fill(0)),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at.min(end)..end)),
            4 => {
                let copy = bytes.get(at..end).unwrap_or_default().to_vec();
                let to = ((next() << 8) | next()) % reach;
                bytes.splice(to.min(bytes.len())..to.min(bytes.len()), copy);
            }
            _ => {
                let noise: Vec<u8> = (0..length % 16).map(|_| next() as u8).collect();
                let at = at.min(bytes.len());
                bytes.splice(at..at, noise);
            }
        }
    }
}

/// A record with a valid checksum, in the format of docs/explanation/ledger.md.
struct Record {
    seq: u64,
    kind: String,
    uid: String,
    /// In the form that the ledger returns.
    entry: Value,
}

/// The records of a file, at any offset.
fn records(bytes: &[u8]) -> Vec<Record> {
    (0..bytes.len())
        .filter_map(|at| record(&bytes[at..]))
        .collect()
}

fn record(bytes: &[u8]) -> Option<Record> {
    let frame = bytes
        .get(..FRAME)
        .filter(|frame| frame[8] == b' ' && frame[17] == b' ')?;
    let number = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let length = usize::try_from(number(&frame[..8])?).ok()?;
    let text = bytes.get(FRAME..FRAME.checked_add(length)?)?;
    if crc32fast::hash(text) != number(&frame[9..17])? {
        return None;
    }
    let mut fields: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let seq = fields.remove("seq")?.as_u64()?;
    let kind = fields.remove("kind")?.as_str()?.to_owned();
    let uid = fields
        .get("uid")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    Some(Record {
        seq,
        kind,
        uid,
        entry: Value::Object(fields),
    })
}

/// The claims that valid records prove: the newest record of the claim has its devices, and no newer record of another
/// claim has one of them.
fn proven(files: &Files) -> BTreeMap<String, Value> {
    let snapshot = files
        .get("snapshot")
        .map(|bytes| records(bytes))
        .unwrap_or_default();
    let marks = snapshot
        .iter()
        .filter(|record| matches!(record.kind.as_str(), "snapshot" | "end"));
    let included = marks.map(|record| record.seq).max().unwrap_or(0);
    let journals = files
        .iter()
        .filter(|(name, _)| name.starts_with("journal-"));
    let later = journals
        .flat_map(|(_, bytes)| records(bytes))
        .filter(|record| record.seq > included);
    let all: Vec<Record> = snapshot.into_iter().chain(later).collect();
    let mut newest: BTreeMap<&str, &Record> = BTreeMap::new();
    for record in &all {
        let known = newest.get(record.uid.as_str()).map_or(0, |known| known.seq);
        if matches!(record.kind.as_str(), "claim" | "release") && record.seq >= known {
            newest.insert(&record.uid, record);
        }
    }
    let held = |record: &&Record| record.kind == "claim";
    newest
        .values()
        .copied()
        .filter(held)
        .filter(|older| {
            // Also a claim that was released since proves that the older one no longer had the device.
            !all.iter()
                .filter(held)
                .filter(|newer| newer.uid != older.uid && newer.seq > older.seq)
                .any(|newer| conflict(&older.entry, &newer.entry))
        })
        .map(|record| (record.uid.clone(), record.entry.clone()))
        .collect()
}

fn conflict(left: &Value, right: &Value) -> bool {
    let devices = |entry: &Value| entry["devices"].as_array().cloned().unwrap_or_default();
    devices(left).iter().any(|mine| {
        devices(right).iter().any(|other| {
            let admin = mine["admin_access"] == true || other["admin_access"] == true;
            let shares = mine["share_id"].is_string() && other["share_id"].is_string();
            mine["device"] == other["device"]
                && !admin
                && !(shares && mine["share_id"] != other["share_id"])
        })
    })
}

/// Checks that no device has two conflicting holders.
fn check_alone(entries: &[Arc<Entry>]) {
    for (index, left) in entries.iter().enumerate() {
        for right in &entries[index + 1..] {
            let clash = left.devices.iter().any(|mine| {
                right.devices.iter().any(|other| {
                    (&mine.pool, &mine.device) == (&other.pool, &other.device)
                        && mine.excludes(other)
                })
            });
            assert!(!clash, "{} and {} hold one device", left.uid, right.uid);
        }
    }
}
