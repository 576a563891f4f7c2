//! The entries of a map with CEL's rules for keys: equal numbers of different types are the same key.

use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::{List, Map, Value};

/// With fewer entries a scan is faster than an index.
const INDEX_FROM: usize = 9;

/// Entries in the order of insertion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
    /// A lookup of an unknown key returns an empty map, as for the domains of `device.attributes`.
    empty_for_unknown: bool,
}

/// The identity of a map key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(u64),
    String(Arc<str>),
    Duration(i64),
    Timestamp(i64, u32, i32),
    Type(Arc<str>),
    Ip(std::net::IpAddr, u8),
    /// Compared by identity, not by content.
    Shared(usize),
}

// === impl Entries ===

impl Entries {
    pub(crate) fn with_empty_for_unknown() -> Self {
        Self {
            empty_for_unknown: true,
            ..Self::default()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Value, Value)> {
        self.entries.iter()
    }

    /// A copy that is charged before it is made.
    pub(crate) fn charged_copy(&self, budget: &mut Budget) -> Result<Self, Fault> {
        for _ in &self.entries {
            budget.charge_entry()?;
        }
        Ok(self.clone())
    }

    /// Sets the value of a key, and replaces an earlier one. Returns an error if the type of `key` cannot be a key.
    pub(crate) fn insert(&mut self, key: Value, value: Value) -> Result<(), Fault> {
        let identity = Key::of(&key)?;
        match self.position(&identity) {
            Some(at) => self.entries[at].1 = value,
            None => self.push(identity, key, value),
        }
        Ok(())
    }

    /// Adds a string key, which must not exist yet.
    pub(crate) fn push_name(&mut self, name: &Arc<str>, value: Value) {
        self.push(
            Key::String(Arc::clone(name)),
            Value::String(Arc::clone(name)),
            value,
        );
    }

    pub(crate) fn remove(&mut self, key: &Value) -> Result<(), Fault> {
        if let Some(at) = self.position(&Key::of(key)?) {
            self.entries.remove(at);
            self.index.clear();
            if self.entries.len() >= INDEX_FROM {
                self.reindex();
            }
        }
        Ok(())
    }

    pub(crate) fn find(&self, key: &Value) -> Option<Value> {
        match self.lookup(key) {
            Some(at) => Some(self.entries[at].1.clone()),
            None if self.empty_for_unknown => Some(Value::Map(Map::fixed(Entries::default()))),
            None => None,
        }
    }

    pub(crate) fn contains(&self, key: &Value) -> bool {
        self.lookup(key).is_some()
    }

    fn lookup(&self, key: &Value) -> Option<usize> {
        let identity = Key::of(key).ok()?;
        if let Some(at) = self.position(&identity) {
            return Some(at);
        }
        match identity {
            Key::Double(bits) => {
                let value = f64::from_bits(bits);
                lossless_int(value)
                    .and_then(|i| self.position(&Key::Int(i)))
                    .or_else(|| lossless_uint(value).and_then(|u| self.position(&Key::Uint(u))))
            }
            Key::Int(i) => u64::try_from(i)
                .ok()
                .and_then(|u| self.position(&Key::Uint(u))),
            Key::Uint(u) => i64::try_from(u)
                .ok()
                .and_then(|i| self.position(&Key::Int(i))),
            _ => None,
        }
    }

    fn position(&self, key: &Key) -> Option<usize> {
        if self.index.is_empty() {
            return self
                .entries
                .iter()
                .position(|(k, _)| Key::of(k).is_ok_and(|k| k == *key));
        }
        self.index.get(key).copied()
    }

    fn push(&mut self, identity: Key, key: Value, value: Value) {
        self.entries.push((key, value));
        if !self.index.is_empty() {
            self.index.insert(identity, self.entries.len() - 1);
        } else if self.entries.len() >= INDEX_FROM {
            self.reindex();
        }
    }

    fn reindex(&mut self) {
        for (at, (key, _)) in self.entries.iter().enumerate() {
            if let Ok(key) = Key::of(key) {
                self.index.insert(key, at);
            }
        }
    }
}

// === impl Key ===

impl Key {
    pub(crate) fn of(value: &Value) -> Result<Self, Fault> {
        Ok(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            // 0.0 and -0.0 are the same key.
            Value::Double(value) => Self::Double(if *value == 0.0 {
                0.0_f64.to_bits()
            } else {
                value.to_bits()
            }),
            Value::String(text) => Self::String(Arc::clone(text)),
            Value::Duration(nanos) => Self::Duration(*nanos),
            Value::Timestamp(time) => Self::Timestamp(time.seconds, time.nanos, time.offset),
            Value::Type(name) => Self::Type(Arc::clone(name)),
            Value::Ip(ip) => Self::Ip(*ip, u8::MAX),
            Value::Cidr(ip, bits) => Self::Ip(*ip, *bits),
            Value::List(List::Fixed(items)) => Self::Shared(Arc::as_ptr(items).addr()),
            Value::List(List::Growing(items)) => Self::Shared(Arc::as_ptr(items).addr()),
            Value::Map(Map::Fixed(entries)) => Self::Shared(Arc::as_ptr(entries).addr()),
            Value::Map(Map::Growing(entries)) => Self::Shared(Arc::as_ptr(entries).addr()),
            Value::Optional(Some(inner)) => Self::Shared(Arc::as_ptr(inner).addr()),
            Value::Optional(None) => Self::Shared(0),
            Value::Quantity(amount) => Self::Shared(Arc::as_ptr(amount).addr()),
            Value::Url(url) => Self::Shared(Arc::as_ptr(url).addr()),
            Value::Bytes(_) | Value::Semver(_) | Value::Format(_) => {
                return Err(Fault::new(format!(
                    "a value of type {} cannot be the key of a map",
                    value.type_name()
                )));
            }
        })
    }
}

/// The integer that equals a double; `None` if it is too large to be exact.
pub(crate) fn lossless_int(value: f64) -> Option<i64> {
    let fits = value > -9_223_372_036_854_775_808.0 && value < 9_223_372_036_854_775_808.0;
    (fits && value.fract() == 0.0).then_some(value as i64)
}

pub(crate) fn lossless_uint(value: f64) -> Option<u64> {
    let fits = (0.0..18_446_744_073_709_551_616.0).contains(&value);
    (fits && value.fract() == 0.0).then_some(value as u64)
}
