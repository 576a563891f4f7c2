//! The values of an attribute as a set, as constraints compare them where DRAListTypeAttributes is on: a single value is
//! a set of one.
//!
//! The rules are those of k8s.io/dynamic-resource-allocation v0.37.1,
//! structured/internal/experimental/allocator_experimental.go (attributeAsSet, deviceAttributeListAsSet.intersection).

use std::collections::BTreeSet;

use dra_api::DeviceAttribute;

/// Values of one type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ValueSet<'a> {
    Ints(BTreeSet<i64>),
    Bools(BTreeSet<bool>),
    Strings(BTreeSet<&'a str>),
    Versions(BTreeSet<&'a str>),
}

impl<'a> ValueSet<'a> {
    /// The values of an attribute; `None` if it has none of a known type.
    pub(crate) fn of(attribute: &'a DeviceAttribute) -> Option<Self> {
        let ints = attribute.ints.as_deref().unwrap_or_default();
        let bools = attribute.bools.as_deref().unwrap_or_default();
        let strings = attribute.strings.as_deref().unwrap_or_default();
        let versions = attribute.versions.as_deref().unwrap_or_default();
        if !ints.is_empty() {
            Some(Self::Ints(ints.iter().copied().collect()))
        } else if !bools.is_empty() {
            Some(Self::Bools(bools.iter().copied().collect()))
        } else if !strings.is_empty() {
            Some(Self::Strings(texts(strings)))
        } else if !versions.is_empty() {
            Some(Self::Versions(texts(versions)))
        } else if let Some(value) = attribute.int {
            Some(Self::Ints(BTreeSet::from([value])))
        } else if let Some(value) = attribute.bool {
            Some(Self::Bools(BTreeSet::from([value])))
        } else if let Some(value) = &attribute.string {
            Some(Self::Strings(BTreeSet::from([value.as_str()])))
        } else {
            let value = attribute.version.as_deref()?;
            Some(Self::Versions(BTreeSet::from([value])))
        }
    }

    /// The common values; `None` if there are none.
    pub(crate) fn intersection(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Ints(one), Self::Ints(other)) => common(one, other).map(Self::Ints),
            (Self::Bools(one), Self::Bools(other)) => common(one, other).map(Self::Bools),
            (Self::Strings(one), Self::Strings(other)) => common(one, other).map(Self::Strings),
            (Self::Versions(one), Self::Versions(other)) => common(one, other).map(Self::Versions),
            _ => None,
        }
    }

    /// Each value as a set of one.
    pub(crate) fn members(&self) -> Vec<Self> {
        match self {
            Self::Ints(values) => each(values).map(Self::Ints).collect(),
            Self::Bools(values) => each(values).map(Self::Bools).collect(),
            Self::Strings(values) => each(values).map(Self::Strings).collect(),
            Self::Versions(values) => each(values).map(Self::Versions).collect(),
        }
    }

    /// Each value as text, for explanations.
    pub(crate) fn texts(&self) -> Vec<String> {
        match self {
            Self::Ints(values) => values.iter().map(ToString::to_string).collect(),
            Self::Bools(values) => values.iter().map(ToString::to_string).collect(),
            Self::Strings(values) | Self::Versions(values) => {
                values.iter().map(|value| (*value).to_owned()).collect()
            }
        }
    }
}

fn texts(values: &[String]) -> BTreeSet<&str> {
    values.iter().map(String::as_str).collect()
}

fn each<T: Ord + Copy>(values: &BTreeSet<T>) -> impl Iterator<Item = BTreeSet<T>> {
    values.iter().map(|value| BTreeSet::from([*value]))
}

fn common<T: Ord + Copy>(one: &BTreeSet<T>, other: &BTreeSet<T>) -> Option<BTreeSet<T>> {
    let common: BTreeSet<T> = one.intersection(other).copied().collect();
    (!common.is_empty()).then_some(common)
}

#[cfg(test)]
mod tests {
    use dra_api::DeviceAttribute;
    use serde_json::{Value, json};

    use super::ValueSet;

    fn attribute(value: &Value) -> DeviceAttribute {
        serde_json::from_value(value.clone()).unwrap_or_default()
    }

    /// The common values of two attributes as text; `None` if there are none.
    fn common(one: &Value, other: &Value) -> Option<Vec<String>> {
        let (one, other) = (attribute(one), attribute(other));
        let common = ValueSet::of(&one)?.intersection(&ValueSet::of(&other)?)?;
        Some(common.texts())
    }

    fn texts(values: &[&str]) -> Option<Vec<String>> {
        Some(values.iter().map(|value| (*value).to_owned()).collect())
    }

    #[test]
    fn lists_have_their_common_values() {
        let strings = |values: &[&str]| json!({"strings": values});
        let found = common(&strings(&["c", "a", "b"]), &strings(&["b", "c", "d"]));
        assert_eq!(found, texts(&["b", "c"]));
        assert_eq!(common(&strings(&["a"]), &strings(&["b"])), None);
        let ints = common(&json!({"ints": [1, -2]}), &json!({"ints": [-2, 3]}));
        assert_eq!(ints, texts(&["-2"]));
        let bools = common(&json!({"bools": [true]}), &json!({"bools": [false, true]}));
        assert_eq!(bools, texts(&["true"]));
    }

    #[test]
    fn a_single_value_is_a_list_of_one() {
        let found = common(&json!({"string": "a"}), &json!({"strings": ["b", "a"]}));
        assert_eq!(found, texts(&["a"]));
        let found = common(
            &json!({"version": "1.0.0"}),
            &json!({"versions": ["1.0.0"]}),
        );
        assert_eq!(found, texts(&["1.0.0"]));
        assert_eq!(common(&json!({"int": 1}), &json!({"int": 2})), None);
    }

    #[test]
    fn values_of_different_types_have_nothing_in_common() {
        let version = json!({"versions": ["1.0.0"]});
        assert_eq!(common(&json!({"strings": ["1.0.0"]}), &version), None);
        assert_eq!(
            common(&json!({"ints": [1]}), &json!({"bools": [true]})),
            None
        );
    }

    #[test]
    fn an_empty_list_has_no_values() {
        assert_eq!(ValueSet::of(&attribute(&json!({"ints": []}))), None);
        let unknown = attribute(&json!({"durations": ["1s"]}));
        assert_eq!(ValueSet::of(&unknown), None);
    }
}
