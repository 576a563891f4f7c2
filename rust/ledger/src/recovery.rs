//! Reads what earlier processes left: the snapshot, the journals after it, and whatever happened to them.
//!
//! Reads only. Setting damaged files aside and starting afresh is the ledger's business.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::disk::Disk;
use crate::entry::Phase;
use crate::error::{Error, Result};
use crate::journal::{SNAPSHOT, SNAPSHOT_PART, journal_name, journal_number};
use crate::ledger::LOCK;
use crate::record::{Body, Mark, Record, begins_like_records, scan, uid_hint};
use crate::state::State;
use crate::turn::{TURN, TURN_NEXT};

/// What was found when the ledger was opened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub claims: usize,
    /// Claims whose preparation began and whose answer was never recorded: to be rolled back or finished.
    pub started: Vec<String>,
    /// Claims last written before this boot: what was set up in the hardware is gone.
    pub earlier_boot: Vec<String>,
    pub damage: Vec<Damage>,
    /// Damaged files, kept under these names for a person to look at.
    pub set_aside: Vec<String>,
    /// Records known to be missing, from the gaps in their numbers.
    pub lost_records: u64,
    /// Claims dropped because a later one holds their device, which proves that they were released.
    pub superseded: Vec<Superseded>,
    /// Records of a newer version, kept but not understood.
    pub foreign_records: usize,
    /// Why nothing can be recorded at present; every change is refused until it can.
    pub not_writable: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    pub file: String,
    pub offset: usize,
    pub length: usize,
    /// "torn tail" after a crash in the middle of a write, which is no loss; "damaged record" otherwise.
    pub what: &'static str,
    /// The claim that the damaged bytes seem to speak of.
    pub uid: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superseded {
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
    /// Where the last record of the last journal ends.
    pub(crate) last_end: u64,
    /// Files that the next snapshot replaces, and whether each is worth keeping for a person.
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
    let included = found.read_snapshot(disk, dir)?;
    let mut seen = found.last_seq;
    let mut tails = Vec::new();
    for number in numbers {
        let tail = found.read_journal(disk, dir, number, included, &mut seen)?;
        tails.extend(tail);
    }
    found.settle_tails(tails);
    found.summarise(boot_id);
    Ok(found)
}

/// Enough of a file to see whether records begin there.
const START: usize = 32;

/// Refuses files in which another version may keep claims: what this one cannot read must not count as empty. Files that
/// are plainly something else are left alone.
fn check_names(disk: &dyn Disk, dir: &Path, names: &[String]) -> Result<()> {
    for name in names.iter().filter(|name| !is_known(name)) {
        let path = dir.join(name);
        let numbered = name
            .strip_prefix("journal-")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        let named_so = !numbered && (name.starts_with("journal") || name.starts_with(SNAPSHOT));
        let has_records = || {
            disk.read_start(&path, START)
                .is_ok_and(|start| begins_like_records(&start))
        };
        if named_so || has_records() {
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
        || [SNAPSHOT, SNAPSHOT_PART, LOCK, TURN, TURN_NEXT].contains(&name)
        || journal_number(name).is_some_and(|number| journal_name(number) == name)
}

/// Damage after the last sound record of a journal: torn if nothing was written after it, in any file.
struct Tail {
    file: String,
    first_damage: usize,
    records_before: u64,
}

impl Recovered {
    fn read_snapshot(&mut self, disk: &dyn Disk, dir: &Path) -> Result<u64> {
        let Some(bytes) = read(disk, dir, SNAPSHOT)? else {
            return Ok(0);
        };
        let scanned = scan(&bytes);
        check_format(&dir.join(SNAPSHOT), &scanned.records)?;
        let mut included = 0;
        for record in &scanned.records {
            match record.body {
                Body::Mark {
                    kind: Mark::Snapshot | Mark::End,
                } => included = included.max(record.seq),
                _ => self.replay(record),
            }
            self.last_seq = record.seq.max(self.last_seq);
        }
        self.note_damage(SNAPSHOT, &bytes, &scanned.damage);
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
        seen: &mut u64,
    ) -> Result<Option<Tail>> {
        let name = journal_name(number);
        let Some(bytes) = read(disk, dir, &name)? else {
            return Ok(None);
        };
        let scanned = scan(&bytes);
        check_format(&dir.join(&name), &scanned.records)?;
        self.last_end = scanned.sound_until as u64;
        for record in &scanned.records {
            if matches!(record.body, Body::Mark { .. }) || record.seq <= included {
                continue;
            }
            self.report.lost_records += record.seq.saturating_sub(*seen + 1);
            *seen = record.seq.max(*seen);
            self.last_seq = record.seq.max(self.last_seq);
            self.replay(record);
        }
        let first_damage = self.report.damage.len();
        self.note_damage(&name, &bytes, &scanned.damage);
        let in_tail = scanned
            .damage
            .iter()
            .filter(|range| range.start >= scanned.sound_until)
            .count();
        self.files
            .push((name.clone(), scanned.damage.len() > in_tail));
        Ok((in_tail > 0).then(|| Tail {
            file: name,
            first_damage: first_damage + scanned.damage.len() - in_tail,
            records_before: self.last_seq,
        }))
    }

    fn settle_tails(&mut self, tails: Vec<Tail>) {
        for tail in tails {
            let torn = tail.records_before == self.last_seq;
            for damage in self.report.damage[tail.first_damage..]
                .iter_mut()
                .filter(|d| d.file == tail.file)
            {
                damage.what = if torn { "torn tail" } else { damage.what };
            }
            if !torn {
                self.files
                    .iter_mut()
                    .filter(|(name, _)| *name == tail.file)
                    .for_each(|(_, keep)| *keep = true);
            }
        }
    }

    fn note_damage(&mut self, file: &str, bytes: &[u8], ranges: &[std::ops::Range<usize>]) {
        self.report.damage.extend(ranges.iter().map(|range| Damage {
            file: file.to_owned(),
            offset: range.start,
            length: range.len(),
            what: "damaged record",
            uid: uid_hint(&bytes[range.clone()]),
        }));
    }

    /// A start is accepted only when the device is free. So a record that conflicts with an older claim proves that the
    /// older one was released and the record of it lost; keeping both would hold one device twice.
    fn replay(&mut self, record: &Record) {
        if let Body::Claim(entry) = &record.body {
            let older: Vec<Superseded> = self
                .state
                .conflicts(entry)
                .map(|(held, pool, device)| Superseded {
                    uid: held.entry.uid.clone(),
                    by: entry.uid.clone(),
                    pool: pool.to_owned(),
                    device: device.to_owned(),
                })
                .collect();
            for one in older {
                self.state.take(&one.uid);
                self.report.superseded.push(one);
            }
        }
        self.state.apply(record);
    }

    fn summarise(&mut self, boot_id: &str) {
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

/// A file that exists and cannot be read is an error: an agent that went on without it would hand its devices out again.
fn read(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    match disk.read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, &error)),
    }
}
