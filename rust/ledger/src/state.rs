//! The claims of one moment, and the rule of who excludes whom. Knows no disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::entry::{Entry, device_key};
use crate::error::{Conflict, Error, Result};
use crate::record::{Body, Record};

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    claims: BTreeMap<String, Held>,
    /// Device, by its key, to the uids that name it, in the order in which they took it.
    holders: BTreeMap<(String, String), Vec<String>>,
    foreign: Vec<Foreign>,
}

/// An entry and the number of the record that it came from.
#[derive(Clone, Debug)]
pub(crate) struct Held {
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
    pub(crate) fn get(&self, uid: &str) -> Option<&Held> {
        self.claims.get(uid)
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &Held> {
        self.claims.values()
    }

    pub(crate) fn uids(&self) -> impl Iterator<Item = &String> {
        self.claims.keys()
    }

    pub(crate) fn foreign_count(&self) -> usize {
        self.foreign.len()
    }

    pub(crate) fn holders(&self, pool: &str, device: &str) -> impl Iterator<Item = &Held> {
        let uids = self
            .holders
            .get(&device_key(pool, device))
            .map_or(&[][..], Vec::as_slice);
        uids.iter().filter_map(|uid| self.claims.get(uid))
    }

    /// Uids of other claims that `entry` cannot live beside, each with the device in question.
    pub(crate) fn conflicts<'a>(
        &'a self,
        entry: &'a Entry,
    ) -> impl Iterator<Item = (&'a Held, &'a str, &'a str)> {
        entry.devices.iter().flat_map(move |wanted| {
            self.holders(&wanted.pool, &wanted.device)
                .filter(move |held| {
                    held.entry.uid != entry.uid
                        && held
                            .entry
                            .devices
                            .iter()
                            .any(|has| has.same_device(wanted) && has.excludes(wanted))
                })
                .map(move |held| (held, wanted.pool.as_str(), wanted.device.as_str()))
        })
    }

    /// Refuses a device that is held, or named twice by the claim itself.
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
            Body::Claim(entry) => self.put(record.seq, Arc::new(entry.as_ref().clone())),
            Body::Release { uid } => self.take(uid),
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

    fn put(&mut self, seq: u64, entry: Arc<Entry>) {
        self.take(&entry.uid);
        for held in &entry.devices {
            let uids = self.holders.entry(held.key()).or_default();
            if !uids.contains(&entry.uid) {
                uids.push(entry.uid.clone());
            }
        }
        self.claims.insert(entry.uid.clone(), Held { seq, entry });
    }

    pub(crate) fn take(&mut self, uid: &str) {
        let Some(held) = self.claims.remove(uid) else {
            return;
        };
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

    /// Everything that a snapshot must hold, in a stable order.
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
