//! Reads the files of earlier processes: the snapshot, the journals after it, and their damage.
//!
//! It never writes. [`crate::Ledger`] sets damaged files aside and writes new ones.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::disk::Disk;
use crate::entry::Phase;
use crate::error::{Error, Result};
use crate::journal::{SNAPSHOT, SNAPSHOT_TEMP, journal_name, journal_number};
use crate::lease::{LEASE_FILE, QUEUE_FILE};
use crate::ledger::{LOCK_FILE, RESERVE_FILE};
use crate::record::{Body, Mark, Record, looks_like_records, scan, uid_hint};
use crate::state::State;

/// The state of the files when the ledger was opened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub claims: usize,
    /// Uids of claims that are started and not completed: to be rolled back or finished.
    pub started: Vec<String>,
    /// Uids of claims last written before this boot: their hardware setup no longer exists.
    pub earlier_boot: Vec<String>,
    pub damage: Vec<Damage>,
    /// The names under which damaged files are kept for inspection.
    pub set_aside: Vec<String>,
    /// The number of missing records, from gaps in their sequence numbers.
    pub lost_records: u64,
    /// Claims dropped because a later one holds their device, which proves that they were released.
    pub superseded: Vec<SupersededClaim>,
    /// The number of records of a newer version, which are kept.
    pub foreign_records: usize,
    /// Why claims cannot be recorded; releases may still succeed.
    pub not_writable: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub file: String,
    pub offset: usize,
    pub length: usize,
    /// "torn tail" after a crash during a write, which loses nothing; "damaged record" otherwise.
    #[serde(rename = "what")]
    pub kind: &'static str,
    /// The claim that the damaged bytes seem to belong to.
    pub uid: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SupersededClaim {
    pub uid: String,
    pub by: String,
    pub pool: String,
    pub device: String,
}

#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) report: Report,
    pub(crate) last_seq: u64,
    pub(crate) last_journal: u64,
    /// The offset at which the last record of the last journal ends.
    pub(crate) last_end: u64,
    /// The length of the last journal.
    pub(crate) last_length: u64,
    /// The length of all files: an upper bound of the size of the next snapshot.
    pub(crate) length: u64,
    /// Files that the next snapshot replaces, and whether each is kept for inspection.
    pub(crate) files: Vec<(String, bool)>,
}

pub(crate) fn recover(disk: &dyn Disk, dir: &Path, boot_id: &str) -> Result<Recovered> {
    let names = disk.list(dir).map_err(|e| Error::io("list", dir, &e))?;
    check_names(disk, dir, &names)?;
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| journal_number(name).filter(|n| journal_name(*n) == *name))
        .collect();
    numbers.sort_unstable();

    let mut found = Recovered {
        last_journal: numbers.last().copied().unwrap_or(0),
        ..Recovered::default()
    };
    let mut records = Vec::new();
    let included = found.read_snapshot(disk, dir, &mut records)?;
    let first_change = records.len();
    let newest_in_snapshot = found.last_seq;
    let mut tails = Vec::new();
    for number in numbers {
        let tail = found.read_journal(disk, dir, number, included, &mut records)?;
        tails.extend(tail);
    }
    found.classify_tails(tails);
    found.report.lost_records = gaps(newest_in_snapshot, &records[first_change..]);
    // Not in the order of the files: after damage, the copy of an older record can follow a newer one.
    records.sort_by_key(|record| record.seq);
    records.iter().for_each(|record| found.replay(record));
    found.summarize(boot_id);
    Ok(found)
}

/// The length of a file's prefix that is read to detect records.
const PREFIX_BYTES: usize = 32;

/// Refuses files in which another version may store claims: a file that this version cannot read must not count as
/// empty. Ignores files that have neither such a name nor records.
fn check_names(disk: &dyn Disk, dir: &Path, names: &[String]) -> Result<()> {
    for name in names.iter().filter(|name| !is_known(name)) {
        let path = dir.join(name);
        let numbered = name
            .strip_prefix("journal-")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let named_like_ledger =
            !numbered && (name.starts_with("journal") || name.starts_with(SNAPSHOT));
        let has_records = || {
            disk.read_start(&path, PREFIX_BYTES)
                .is_ok_and(|start| looks_like_records(&start))
        };
        if named_like_ledger || has_records() {
            return Err(Error::Unsupported {
                path,
                found: "its name is not one of format 1".into(),
            });
        }
    }
    Ok(())
}

fn is_known(name: &str) -> bool {
    let set_aside = name.rsplit_once(".corrupt-").is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    set_aside
        || [
            SNAPSHOT,
            SNAPSHOT_TEMP,
            RESERVE_FILE,
            LOCK_FILE,
            LEASE_FILE,
            QUEUE_FILE,
        ]
        .contains(&name)
        || journal_number(name).is_some_and(|number| journal_name(number) == name)
}

/// Damage after the last valid record of a journal: torn if no record follows it in any file.
struct Tail {
    file: String,
    first_damage: usize,
    records_before: u64,
}

impl Recovered {
    /// Returns the number of the newest record that the snapshot includes.
    fn read_snapshot(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        records: &mut Vec<Record>,
    ) -> Result<u64> {
        let Some(bytes) = read(disk, dir, SNAPSHOT)? else {
            return Ok(0);
        };
        let scanned = scan(&bytes);
        check_format(&dir.join(SNAPSHOT), &scanned.records)?;
        self.length += bytes.len() as u64;
        let mut included = 0;
        for record in scanned.records {
            self.last_seq = record.seq.max(self.last_seq);
            match record.body {
                Body::Mark {
                    kind: Mark::Snapshot | Mark::End,
                } => included = included.max(record.seq),
                _ => records.push(record),
            }
        }
        self.report_damage(SNAPSHOT, &bytes, &scanned.damage);
        if !scanned.damage.is_empty() {
            self.files.push((SNAPSHOT.to_owned(), true));
        }
        Ok(included)
    }

    fn read_journal(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        number: u64,
        included: u64,
        records: &mut Vec<Record>,
    ) -> Result<Option<Tail>> {
        let name = journal_name(number);
        let Some(bytes) = read(disk, dir, &name)? else {
            return Ok(None);
        };
        let scanned = scan(&bytes);
        check_format(&dir.join(&name), &scanned.records)?;
        self.last_end = scanned.valid_until as u64;
        self.last_length = bytes.len() as u64;
        self.length += self.last_length;
        for record in scanned.records {
            if matches!(record.body, Body::Mark { .. }) || record.seq <= included {
                continue;
            }
            self.last_seq = record.seq.max(self.last_seq);
            records.push(record);
        }
        let first_damage = self.report.damage.len();
        self.report_damage(&name, &bytes, &scanned.damage);
        let in_tail = scanned
            .damage
            .iter()
            .filter(|range| range.start >= scanned.valid_until)
            .count();
        self.files
            .push((name.clone(), scanned.damage.len() > in_tail));
        Ok((in_tail > 0).then(|| Tail {
            file: name,
            first_damage: first_damage + scanned.damage.len() - in_tail,
            records_before: self.last_seq,
        }))
    }

    fn classify_tails(&mut self, tails: Vec<Tail>) {
        for tail in tails {
            let torn = tail.records_before == self.last_seq;
            for damage in self.report.damage[tail.first_damage..]
                .iter_mut()
                .filter(|d| d.file == tail.file)
            {
                damage.kind = if torn { "torn tail" } else { damage.kind };
            }
            if !torn {
                self.files
                    .iter_mut()
                    .filter(|(name, _)| *name == tail.file)
                    .for_each(|(_, keep)| *keep = true);
            }
        }
    }

    fn report_damage(&mut self, file: &str, bytes: &[u8], ranges: &[std::ops::Range<usize>]) {
        self.report.damage.extend(ranges.iter().map(|range| Damage {
            file: file.to_owned(),
            offset: range.start,
            length: range.len(),
            kind: "damaged record",
            uid: uid_hint(&bytes[range.clone()]),
        }));
    }

    /// A start is accepted only if the device is free. A record that conflicts with an older claim therefore proves
    /// that the older claim was released and the record of its release was lost. Keeping both would hold one device
    /// twice.
    fn replay(&mut self, record: &Record) {
        if let Body::Claim(entry) = &record.body {
            let older: Vec<SupersededClaim> = self
                .state
                .conflicts(entry)
                .map(|(held, pool, device)| SupersededClaim {
                    uid: held.entry.uid.clone(),
                    by: entry.uid.clone(),
                    pool: pool.to_owned(),
                    device: device.to_owned(),
                })
                .collect();
            for one in older {
                self.state.remove(&one.uid);
                self.report.superseded.push(one);
            }
        }
        self.state.apply(record);
    }

    fn summarize(&mut self, boot_id: &str) {
        self.report.claims = self.state.claims().count();
        self.report.foreign_records = self.state.foreign_count();
        for held in self.state.claims() {
            if held.entry.state != Phase::Completed {
                self.report.started.push(held.entry.uid.clone());
            }
            if held.entry.boot_id != boot_id {
                self.report.earlier_boot.push(held.entry.uid.clone());
            }
        }
        let held: BTreeSet<&String> = self.state.uids().collect();
        for damage in &mut self.report.damage {
            damage.uid = damage.uid.take().filter(|uid| !held.contains(uid));
        }
    }
}

/// The number of records that are missing from `changes` after the record `last`.
fn gaps(last: u64, changes: &[Record]) -> u64 {
    let numbers: BTreeSet<u64> = changes.iter().map(|record| record.seq).collect();
    let newest = numbers.last().copied().unwrap_or(last);
    let after = numbers.range(last.saturating_add(1)..).count() as u64;
    newest.saturating_sub(last) - after
}

fn check_format(path: &Path, records: &[Record]) -> Result<()> {
    let found = records.iter().find_map(|record| match &record.body {
        Body::Unsupported { found } => Some(found),
        _ => None,
    });
    found.map_or(Ok(()), |found| {
        Err(Error::Unsupported {
            path: path.to_owned(),
            found: found.clone(),
        })
    })
}

/// Reads a file; `None` if it does not exist. A file that exists and cannot be read is an error: an agent that
/// continued without it would allocate its devices again.
fn read(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    match disk.read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, &error)),
    }
}
