//! The claims at one point in time, and the rule that decides which claims conflict. Independent of the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::entry::{Entry, device_key};
use crate::error::{Conflict, Error, Result};
use crate::record::{Body, Record, release_bytes};

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    claims: BTreeMap<String, StoredEntry>,
    /// From the key of a device to the uids of the claims that name it, in the order of their records.
    holders: BTreeMap<(String, String), Vec<String>>,
    foreign: Vec<Foreign>,
    release_bytes: u64,
}

/// An entry and the number of the record that it came from.
#[derive(Clone, Debug)]
pub(crate) struct StoredEntry {
    pub(crate) seq: u64,
    pub(crate) entry: Arc<Entry>,
}

#[derive(Clone, Debug)]
struct Foreign {
    seq: u64,
    kind: String,
    key: Option<String>,
    fields: Arc<Map<String, Value>>,
}

impl State {
    pub(crate) fn get(&self, uid: &str) -> Option<&StoredEntry> {
        self.claims.get(uid)
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &StoredEntry> {
        self.claims.values()
    }

    pub(crate) fn uids(&self) -> impl Iterator<Item = &String> {
        self.claims.keys()
    }

    /// The space that the releases of all claims need in a journal.
    pub(crate) fn release_bytes(&self) -> u64 {
        self.release_bytes
    }

    pub(crate) fn foreign_count(&self) -> usize {
        self.foreign.len()
    }

    pub(crate) fn holders(&self, pool: &str, device: &str) -> impl Iterator<Item = &StoredEntry> {
        let uids = self
            .holders
            .get(&device_key(pool, device))
            .map_or(&[][..], Vec::as_slice);
        uids.iter().filter_map(|uid| self.claims.get(uid))
    }

    /// Other claims that conflict with `entry`, each with the pool and name of the device.
    pub(crate) fn conflicts<'a>(
        &'a self,
        entry: &'a Entry,
    ) -> impl Iterator<Item = (&'a StoredEntry, &'a str, &'a str)> {
        entry.devices.iter().flat_map(move |claimed| {
            self.holders(&claimed.pool, &claimed.device)
                .filter(move |held| {
                    held.entry.uid != entry.uid
                        && held
                            .entry
                            .devices
                            .iter()
                            .any(|has| has.same_device(claimed) && has.excludes(claimed))
                })
                .map(move |held| (held, claimed.pool.as_str(), claimed.device.as_str()))
        })
    }

    /// Refuses a device that another claim holds, or that the claim itself names twice.
    pub(crate) fn check(&self, entry: &Entry) -> Result<()> {
        for (index, one) in entry.devices.iter().enumerate() {
            if entry.devices[index + 1..]
                .iter()
                .any(|other| one.same_device(other) && one.excludes(other))
            {
                return Err(Error::Usage(format!(
                    "claim {} names device {} of pool {} twice without sharing it",
                    entry.uid, one.device, one.pool
                )));
            }
        }
        match self.conflicts(entry).next() {
            None => Ok(()),
            Some((held, pool, device)) => Err(Error::Held(Box::new(Conflict {
                uid: entry.uid.clone(),
                pool: pool.to_owned(),
                device: device.to_owned(),
                holder_uid: held.entry.uid.clone(),
                holder_namespace: held.entry.namespace.clone(),
                holder_name: held.entry.name.clone(),
            }))),
        }
    }

    pub(crate) fn apply(&mut self, record: &Record) {
        match &record.body {
            Body::Mark { .. } | Body::Unsupported { .. } => {}
            Body::Claim(entry) => self.insert(record.seq, Arc::new(entry.as_ref().clone())),
            Body::Release { uid } => self.remove(uid),
            Body::Foreign { kind, key, fields } => {
                self.foreign
                    .retain(|old| key.is_none() || old.kind != *kind || old.key != *key);
                let (kind, key, fields) = (kind.clone(), key.clone(), Arc::new(fields.clone()));
                self.foreign.push(Foreign {
                    seq: record.seq,
                    kind,
                    key,
                    fields,
                });
            }
        }
    }

    fn insert(&mut self, seq: u64, entry: Arc<Entry>) {
        self.remove(&entry.uid);
        self.release_bytes += release_bytes(&entry.uid);
        for held in &entry.devices {
            let uids = self.holders.entry(held.key()).or_default();
            if !uids.contains(&entry.uid) {
                uids.push(entry.uid.clone());
            }
        }
        self.claims
            .insert(entry.uid.clone(), StoredEntry { seq, entry });
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        let Some(held) = self.claims.remove(uid) else {
            return;
        };
        self.release_bytes -= release_bytes(uid);
        for device in &held.entry.devices {
            let key = device.key();
            if let Some(uids) = self.holders.get_mut(&key) {
                uids.retain(|other| other != uid);
                if uids.is_empty() {
                    self.holders.remove(&key);
                }
            }
        }
    }

    /// All records of a snapshot, in a stable order.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        let claims = self.claims.values().map(|held| Record {
            seq: held.seq,
            body: Body::Claim(Box::new(held.entry.as_ref().clone())),
        });
        let foreign = self.foreign.iter().map(|foreign| Record {
            seq: foreign.seq,
            body: Body::Foreign {
                kind: foreign.kind.clone(),
                key: foreign.key.clone(),
                fields: foreign.fields.as_ref().clone(),
            },
        });
        foreign.chain(claims)
    }
}
