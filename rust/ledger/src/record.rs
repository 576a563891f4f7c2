//! One line of a journal or a snapshot, and how a damaged file is read.
//!
//! A line is `LENGTH CRC JSON\n`, both numbers as eight hexadecimal digits. After damage, the reader continues at the
//! next offset where a length and a checksum match the bytes that follow. Damage therefore loses only the records that
//! it hits.

use std::ops::Range;

use serde_json::{Map, Value, json};

use crate::entry::Entry;

/// The format that this version reads and writes.
const FORMAT_VERSION: u64 = 1;
/// "LLLLLLLL CCCCCCCC ".
const FRAME_BYTES: usize = 18;
/// Far above the size of any claim; prevents a single payload from filling the disk.
pub(crate) const MAX_RECORD_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    /// The first line of a file; in a snapshot also the last. In a snapshot, `seq` is the newest record that it
    /// includes.
    Mark {
        kind: Mark,
    },
    /// A mark of a file of another format, with a description for messages.
    Unsupported {
        found: String,
    },
    /// The complete state of one claim, so that it replaces all earlier records of the claim.
    Claim(Box<Entry>),
    Release {
        uid: String,
    },
    /// Written by a newer version and kept unchanged. Of several with the same kind and key, only the newest is kept.
    Foreign {
        kind: String,
        key: Option<String>,
        fields: Map<String, Value>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Journal,
    Snapshot,
    End,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Snapshot => "snapshot",
            Self::End => "end",
        }
    }
}

// === Writing ===

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let json = Value::Object(self.fields()).to_string();
        let mut line = format!(
            "{:08x} {:08x} ",
            json.len(),
            crc32fast::hash(json.as_bytes())
        )
        .into_bytes();
        line.extend_from_slice(json.as_bytes());
        line.push(b'\n');
        line
    }

    fn fields(&self) -> Map<String, Value> {
        let mut fields = match &self.body {
            Body::Mark { kind } => object(json!({"kind": kind.name(), "format": FORMAT_VERSION,
                "written_by": concat!("dra-agent ", env!("CARGO_PKG_VERSION"))})),
            Body::Unsupported { .. } => Map::new(),
            Body::Claim(entry) => {
                let mut fields = serde_json::to_value(entry).map(object).unwrap_or_default();
                fields.insert("kind".into(), "claim".into());
                fields
            }
            Body::Release { uid } => object(json!({"kind": "release", "uid": uid})),
            Body::Foreign { fields, .. } => fields.clone(),
        };
        fields.insert("seq".into(), self.seq.into());
        fields
    }
}

/// An upper bound of the size of the record that releases the claim `uid`.
pub(crate) fn release_bytes(uid: &str) -> u64 {
    const WITHOUT_UID: usize =
        FRAME_BYTES + r#"{"kind":"release","seq":18446744073709551615,"uid":}"#.len() + 1;
    (WITHOUT_UID + Value::from(uid).to_string().len()) as u64
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

// === Reading ===

/// The content of a file: every record with a valid checksum, and the byte ranges that belong to no record.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) records: Vec<Record>,
    pub(crate) damage: Vec<Range<usize>>,
    /// The offset at which the last valid record ends. Only damage after it can be a torn write.
    pub(crate) valid_until: usize,
}

pub(crate) fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan::default();
    let mut at = 0;
    while at < bytes.len() {
        let next = if let Some((record, end)) = decode_at(bytes, at) {
            scan.records.push(record);
            scan.valid_until = match bytes.get(end) {
                Some(b'\n') => end + 1,
                _ => end,
            };
            scan.valid_until
        } else if bytes[at] == 0 {
            // Preallocated space, or a block that never reached the disk.
            let end = bytes[at..]
                .iter()
                .position(|byte| *byte != 0)
                .map_or(bytes.len(), |offset| at + offset);
            if end < bytes.len() {
                scan.add_damage(at..end);
            }
            end
        } else {
            let end = damage_end(bytes, at);
            scan.add_damage(at..end);
            end
        };
        at = next;
    }
    scan
}

impl Scan {
    fn add_damage(&mut self, range: Range<usize>) {
        match self.damage.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.damage.push(range),
        }
    }
}

/// The offset at which the damage that starts at `at` ends: at the next record, which its length and checksum prove at
/// any offset, or after the line. The text of a record cannot contain another record, because JSON escapes its quotes.
fn damage_end(bytes: &[u8], at: usize) -> usize {
    let line = bytes[at..].iter().position(|byte| *byte == b'\n');
    let end = line.map_or(bytes.len(), |offset| at + offset + 1);
    (at + 1..end)
        .find(|start| decode_at(bytes, *start).is_some())
        .unwrap_or(end)
}

fn decode_at(bytes: &[u8], at: usize) -> Option<(Record, usize)> {
    let frame = bytes.get(at..at + FRAME_BYTES)?;
    if frame[8] != b' ' || frame[17] != b' ' {
        return None;
    }
    let length = usize::try_from(hex(&frame[..8])?)
        .ok()
        .filter(|length| *length <= 2 * MAX_RECORD_BYTES)?;
    let end = at + FRAME_BYTES + length;
    let json = bytes.get(at + FRAME_BYTES..end)?;
    // Avoids a checksum for each sequence of random bytes that looks like a frame.
    if !(json.starts_with(b"{") && json.ends_with(b"}")) {
        return None;
    }
    if crc32fast::hash(json) != hex(&frame[9..17])? {
        return None;
    }
    Some((parse(json)?, end))
}

fn hex(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn parse(json: &[u8]) -> Option<Record> {
    let mut fields: Map<String, Value> = serde_json::from_slice(json).ok()?;
    let seq = fields.get("seq")?.as_u64()?;
    let kind = fields.get("kind")?.as_str()?.to_owned();
    let foreign = |fields: Map<String, Value>, kind: String| {
        let key = fields
            .get("key")
            .or_else(|| fields.get("uid"))
            .and_then(Value::as_str)
            .map(str::to_owned);
        Body::Foreign { kind, key, fields }
    };
    let body = match kind.as_str() {
        "journal" | "snapshot" | "end" if fields.get("format") != Some(&FORMAT_VERSION.into()) => {
            Body::Unsupported {
                found: format_of(&fields),
            }
        }
        "journal" => Body::Mark {
            kind: Mark::Journal,
        },
        "snapshot" => Body::Mark {
            kind: Mark::Snapshot,
        },
        "end" => Body::Mark { kind: Mark::End },
        "claim" => {
            let original = fields.clone();
            fields.remove("seq");
            fields.remove("kind");
            match serde_json::from_value(Value::Object(fields)) {
                Ok(entry) => Body::Claim(Box::new(entry)),
                Err(_) => foreign(original, kind),
            }
        }
        "release" => match fields.get("uid").and_then(Value::as_str) {
            Some(uid) => Body::Release {
                uid: uid.to_owned(),
            },
            None => foreign(fields, kind),
        },
        _ => foreign(fields, kind),
    };
    Some(Record { seq, body })
}

fn format_of(fields: &Map<String, Value>) -> String {
    let format = fields.get("format").map_or_else(
        || "it names no format".to_owned(),
        |format| format!("it is of format {format}"),
    );
    let writer = fields.get("written_by").and_then(Value::as_str);
    writer.map_or_else(
        || format.clone(),
        |writer| format!("{format}, written by {}", writer.escape_default()),
    )
}

/// Whether a file starts with a record, in any format that has the same frame.
pub(crate) fn looks_like_records(start: &[u8]) -> bool {
    start.get(..=FRAME_BYTES).is_some_and(|start| {
        hex(&start[..8]).is_some()
            && start[8] == b' '
            && hex(&start[9..17]).is_some()
            && start[17] == b' '
            && start[FRAME_BYTES] == b'{'
    })
}

/// The uid of the claim that a damaged range of a file seems to belong to. It is only a hint for messages.
pub(crate) fn uid_hint(bytes: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"uid\":\"";
    let start = bytes.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = bytes[start..]
        .iter()
        .take(128)
        .position(|byte| *byte == b'"')?;
    let uid = std::str::from_utf8(&bytes[start..start + length]).ok()?;
    uid.chars()
        .all(|c| c.is_ascii_graphic())
        .then(|| uid.to_owned())
}
