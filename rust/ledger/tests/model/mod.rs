//! The results that a ledger has returned, and therefore must contain after any failure.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeMap;

use dra_ledger::{Entry, Error, Ledger, Phase};
use proptest::prelude::*;
use serde_json::json;

pub fn claim(uid: u8, device: u8) -> Entry {
    serde_json::from_value(json!({
        "uid": format!("u{uid}"), "namespace": "n", "name": format!("c{uid}"),
        "devices": [{"pool": "p", "device": format!("d{device}")}],
    }))
    .unwrap()
}

#[derive(Clone, Debug)]
pub enum Call {
    Start { uid: u8, device: u8, durable: bool },
    Complete { uid: u8, payload: u8 },
    Release { uid: u8 },
    Compact,
    Reopen,
}

pub fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (0..4u8, 0..3u8, any::<bool>()).prop_map(|(uid, device, durable)| Call::Start { uid, device, durable }),
        4 => (0..4u8, any::<u8>()).prop_map(|(uid, payload)| Call::Complete { uid, payload }),
        3 => (0..4u8).prop_map(|uid| Call::Release { uid }),
        1 => Just(Call::Compact),
        1 => Just(Call::Reopen),
    ]
}

/// The state of a claim on disk: (phase, device, payload), or None if it does not exist.
pub type Seen = Option<(Phase, String, serde_json::Value)>;

pub fn seen(entry: &Entry) -> Seen {
    Some((
        entry.state.clone(),
        entry.devices[0].device.clone(),
        entry.payload.clone(),
    ))
}

/// For each claim: the state last returned, and every state attempted since that may have reached the disk.
#[derive(Clone, Debug, Default)]
pub struct Model {
    certain: BTreeMap<String, Seen>,
    possible: BTreeMap<String, Vec<Seen>>,
}

impl Model {
    pub fn settle(&mut self, uid: &str, now: Seen) {
        self.certain.insert(uid.to_owned(), now);
        self.possible.remove(uid);
    }

    /// A durable record makes all earlier ones durable, and rewriting after a failure ensures that failed records are
    /// never read. So a crash leaves exactly what the ledger returns now.
    pub fn settle_all(&mut self, ledger: &Ledger) {
        for uid in (0..4).map(|n| format!("u{n}")) {
            let now = ledger.get(&uid).as_deref().and_then(seen);
            self.settle(&uid, now);
        }
    }

    pub fn check(&mut self, ledger: &Ledger) -> Result<(), TestCaseError> {
        for uid in (0..4).map(|n| format!("u{n}")) {
            let now = ledger.get(&uid).as_deref().and_then(seen);
            let certain = self.certain.get(&uid).cloned().flatten();
            let possible = self
                .possible
                .get(&uid)
                .is_some_and(|states| states.contains(&now));
            prop_assert!(
                now == certain || possible,
                "{uid} is {now:?}, was returned as {certain:?}, tried {:?}",
                self.possible
            );
            self.settle(&uid, now);
        }
        for device in (0..3).map(|n| format!("d{n}")) {
            prop_assert!(
                ledger.holders("p", &device).len() <= 1,
                "{device} is held twice"
            );
        }
        Ok(())
    }
}

pub fn apply(ledger: &Ledger, model: &mut Model, call: &Call) -> Result<(), TestCaseError> {
    let attempt = |model: &mut Model, uid: &str, state: Seen| {
        model
            .possible
            .entry(uid.to_owned())
            .or_default()
            .push(state)
    };
    match call {
        Call::Start {
            uid,
            device,
            durable,
        } => {
            let (entry, uid) = (claim(*uid, *device), format!("u{uid}"));
            let before = ledger.get(&uid);
            match ledger.start(entry.clone(), *durable) {
                Ok(()) if *durable => {
                    model.settle_all(ledger);
                    model.settle(&uid, seen(&entry));
                }
                Ok(()) => attempt(model, &uid, seen(&entry)),
                Err(Error::Io { .. }) => {
                    attempt(model, &uid, seen(&entry));
                    let now = ledger.get(&uid);
                    prop_assert!(
                        now == before || before.is_some_and(|b| b.state == Phase::Started),
                        "{now:?}"
                    );
                }
                Err(_) => {}
            }
        }
        Call::Complete { uid, payload } => {
            let uid = format!("u{uid}");
            let Some(before) = ledger.get(&uid) else {
                return Ok(());
            };
            let after = Entry {
                state: Phase::Completed,
                payload: json!(payload),
                ..before.as_ref().clone()
            };
            match ledger.complete(&uid, json!(payload)) {
                Ok(()) => {
                    prop_assert_eq!(ledger.get(&uid).as_deref().and_then(seen), seen(&after));
                    model.settle_all(ledger);
                    model.settle(&uid, seen(&after));
                }
                Err(_) => {
                    attempt(model, &uid, seen(&after));
                    // Unchanged, or, if the start was lost with it, as on disk.
                    let now = ledger.get(&uid).as_deref().and_then(seen);
                    let certain = model.certain.get(&uid).cloned().flatten();
                    prop_assert!(now == seen(&before) || now == certain, "{uid} is {now:?}");
                }
            }
        }
        Call::Release { uid } => {
            let uid = format!("u{uid}");
            match ledger.release(&uid) {
                Ok(held) => {
                    prop_assert!(ledger.get(&uid).is_none());
                    if held {
                        model.settle_all(ledger);
                    }
                    model.settle(&uid, None);
                }
                Err(_) => attempt(model, &uid, None),
            }
        }
        Call::Compact => drop(ledger.compact()),
        Call::Reopen => {}
    }
    Ok(())
}

pub fn dice(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |sides| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % sides as u64) as usize
    }
}
