//! Values by name in little memory: a sorted list, whose names and values can be shared between objects.
//!
//! The devices of a cluster have nearly the same attributes on every node. A separate map for each device takes ten times
//! the memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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

/// The last different values of a name, and the index of the next one to replace.
type Recent<T> = (Vec<Arc<T>>, usize);

/// More than a node has different values of one attribute, so that values of equal nodes are found again.
const MAX_VALUES: usize = 32;
const MAX_NAMES: usize = 4096;

impl<T: PartialEq> Shared<T> {
    fn known(&mut self, name: &Arc<str>, value: &Arc<T>) -> (Arc<str>, Arc<T>) {
        if !self.0.contains_key(name) {
            if self.0.len() < MAX_NAMES {
                let first = (vec![Arc::clone(value)], 0);
                self.0.insert(Arc::clone(name), first);
            }
            return (Arc::clone(name), Arc::clone(value));
        }
        let name = match self.0.get_key_value(name) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::clone(name),
        };
        let Some((values, next)) = self.0.get_mut(&name) else {
            return (name, Arc::clone(value));
        };
        if let Some(known) = values.iter().find(|known| known == &value) {
            return (name, Arc::clone(known));
        }
        if values.len() < MAX_VALUES {
            values.push(Arc::clone(value));
        } else {
            values[*next] = Arc::clone(value);
            *next = (*next + 1) % MAX_VALUES;
        }
        (name, Arc::clone(value))
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
        let sorted: BTreeMap<String, T> = entries.into_iter().collect();
        let entries = sorted.into_iter();
        Self(
            entries
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
        let entries = BTreeMap::<String, T>::deserialize(deserializer)?;
        Ok(entries.into_iter().collect())
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
        assert_eq!(shared.0["a"].0.len(), MAX_VALUES);
    }
}
