//! Values by name in little memory: a sorted list, whose names and values can be shared between objects.
//!
//! The devices of a cluster have nearly the same attributes on every node. A separate map for each device takes ten times
//! the memory.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::codec::{ApiType, FieldError};

/// Values by name, in the order of names.
#[derive(Debug, Clone, PartialEq)]
pub struct Named<T>(Box<[(Arc<str>, Arc<T>)]>);

impl<T> Named<T> {
    pub fn get(&self, name: &str) -> Option<&T> {
        let found = self.0.binary_search_by(|(known, _)| (**known).cmp(name));
        found.ok().map(|index| &*self.0[index].1)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries in the order of names. Of several with one name, the last one counts.
    fn of(mut entries: Vec<(Arc<str>, Arc<T>)>) -> Self {
        // API servers print names in their order.
        if !entries.is_sorted_by(|(one, _), (next, _)| one < next) {
            let sorted: BTreeMap<_, _> = entries.into_iter().collect();
            entries = sorted.into_iter().collect();
        }
        Self(entries.into())
    }

    /// Adds a value, or replaces the one of its name. Copies the list: for single changes.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: T) {
        let mut entries: BTreeMap<_, _> = std::mem::take(&mut self.0).into_iter().collect();
        entries.insert(name.into(), Arc::new(value));
        self.0 = entries.into_iter().collect();
    }
}

impl<T: PartialEq> Named<T> {
    /// Replaces names and values by equal ones that `shared` knows.
    pub fn share(&mut self, shared: &mut Shared<T>) {
        for (name, value) in &mut self.0 {
            (*name, *value) = shared.known(name, value);
        }
    }
}

/// Values that were seen last, by name. Its memory is bounded.
#[derive(Debug)]
pub struct Shared<T>(HashMap<Arc<str>, Recent<T>>);

/// The last different values of a name.
#[derive(Debug)]
struct Recent<T> {
    name: Arc<str>,
    values: Vec<Arc<T>>,
    /// The index of the next one to replace.
    next: usize,
}

/// More than a node has different values of one attribute, so that values of equal nodes are found again.
const MAX_VALUES: usize = 32;
const MAX_NAMES: usize = 4096;

impl<T: PartialEq> Shared<T> {
    fn known(&mut self, name: &Arc<str>, value: &Arc<T>) -> (Arc<str>, Arc<T>) {
        let Some(recent) = self.0.get_mut(name) else {
            if self.0.len() < MAX_NAMES {
                let first = Recent {
                    name: Arc::clone(name),
                    values: vec![Arc::clone(value)],
                    next: 0,
                };
                self.0.insert(Arc::clone(name), first);
            }
            return (Arc::clone(name), Arc::clone(value));
        };
        (Arc::clone(&recent.name), recent.known(value))
    }
}

impl<T: PartialEq> Recent<T> {
    fn known(&mut self, value: &Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.iter().find(|known| known == &value) {
            return Arc::clone(known);
        }
        if self.values.len() < MAX_VALUES {
            self.values.push(Arc::clone(value));
        } else {
            self.values[self.next] = Arc::clone(value);
            self.next = (self.next + 1) % MAX_VALUES;
        }
        Arc::clone(value)
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T> FromIterator<(String, T)> for Named<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(entries: I) -> Self {
        Self::of(
            entries
                .into_iter()
                .map(|(name, value)| (name.into(), Arc::new(value)))
                .collect(),
        )
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Named<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = members.next_key_seed(Name)? {
            entries.push((name, Arc::new(members.next_value()?)));
        }
        Ok(Named::of(entries))
    }
}

/// Decodes a name without a copy in between.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Arc<str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Arc<str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Arc<str>, E> {
        Ok(name.into())
    }
}

impl<T: ApiType> ApiType for Named<T> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        BTreeMap::<String, T>::check(value, field, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(entries: &[(&str, i64)]) -> Named<i64> {
        let entries = entries
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        entries.collect()
    }

    #[test]
    fn values_are_found_by_name_and_listed_in_order() {
        let mut values = named(&[("b", 2), ("a", 1), ("c", 3)]);
        assert_eq!(values.get("b"), Some(&2));
        assert_eq!(values.get("d"), None);
        values.insert("aa", 4);
        values.insert("b", 5);
        let all: Vec<_> = values.iter().collect();
        assert_eq!(all, [("a", &1), ("aa", &4), ("b", &5), ("c", &3)]);
        assert_eq!(
            serde_json::to_string(&values).ok().as_deref(),
            Some(r#"{"a":1,"aa":4,"b":5,"c":3}"#)
        );
    }

    #[test]
    fn decoded_values_have_the_order_of_names_and_the_last_of_each() {
        let decoded = |json: &str| serde_json::from_str::<Named<i64>>(json).ok();
        let expected = Some(named(&[("a", 1), ("b", 2)]));
        assert_eq!(decoded(r#"{"a": 1, "b": 2}"#), expected);
        assert_eq!(decoded(r#"{"b": 2, "a": 1}"#), expected);
        assert_eq!(decoded(r#"{"a": 3, "\u0062": 2, "a": 1}"#), expected);
    }

    #[test]
    fn equal_values_of_a_name_are_shared_and_different_ones_are_bounded() {
        let mut shared = Shared::default();
        let (mut one, mut other) = (named(&[("a", 1), ("b", 1)]), named(&[("a", 1), ("b", 2)]));
        one.share(&mut shared);
        other.share(&mut shared);
        assert!(Arc::ptr_eq(&one.0[0].1, &other.0[0].1));
        assert!(Arc::ptr_eq(&one.0[1].0, &other.0[1].0));
        assert_eq!(other, named(&[("a", 1), ("b", 2)]));
        for value in 0..1000 {
            named(&[("a", value)]).share(&mut shared);
        }
        assert_eq!(shared.0["a"].values.len(), MAX_VALUES);
    }
}
