//! Decodes objects of a cluster from JSON. Errors name the object and the field.

use dra_api::{ApiType, DeviceClass, FieldError, Node, ResourceSlice};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

/// An object that cannot be used, or a node that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidObject(String);

/// An object of the API that a cluster reads.
pub(super) trait Item: DeserializeOwned + ApiType {
    const KIND: &'static str;

    /// The name for messages.
    fn label(&self) -> String;
}

macro_rules! item {
    ($($kind:ident)*) => { $(
        impl Item for $kind {
            const KIND: &'static str = stringify!($kind);

            fn label(&self) -> String {
                self.metadata.name.clone()
            }
        }
    )* };
}

item! { ResourceSlice DeviceClass Node }

impl InvalidObject {
    pub(super) fn of<T: Item>(object: &T, index: usize, field: &str, message: &str) -> Self {
        let object = match object.label().as_str() {
            "" | "(without a name)" => format!("item {index}"),
            label => label.to_owned(),
        };
        Self(format!("{} {object}: {field}: {message}", T::KIND))
    }

    pub(super) fn duplicate(kind: &str, name: &str) -> Self {
        Self(format!(
            "{kind} {name}: metadata.name: must be unique, two objects have it"
        ))
    }

    pub(super) fn unknown_node(name: &str, known: usize) -> Self {
        Self(format!("node {name} is none of the {known} known nodes"))
    }
}

/// The form of a JSON document.
#[derive(Deserialize)]
struct Form {
    items: Option<IgnoredAny>,
}

/// A list of the API.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct List<T> {
    items: Vec<Option<T>>,
}

/// Decodes an object, an array of objects, or a list of the API.
pub(super) fn decode<T: Item>(json: &[u8]) -> Result<Vec<T>, InvalidObject> {
    decode_any(json).map_err(|error| find_error::<T>(json, &error))
}

/// Decodes objects that must have names.
pub(super) fn decode_named<T: Item>(json: &[u8]) -> Result<Vec<T>, InvalidObject> {
    let objects = decode::<T>(json)?;
    match objects.iter().position(|object| object.label().is_empty()) {
        Some(index) => Err(InvalidObject::of(
            &objects[index],
            index,
            "metadata.name",
            "must be set",
        )),
        None => Ok(objects),
    }
}

fn decode_any<T: Item>(json: &[u8]) -> serde_json::Result<Vec<T>> {
    let items: Vec<Option<T>> = if json.trim_ascii_start().starts_with(b"[") {
        dra_api::from_slice(json)?
    } else if serde_json::from_slice::<Form>(json)?.items.is_some() {
        dra_api::from_slice::<List<T>>(json)?.items
    } else {
        vec![Some(dra_api::from_slice(json)?)]
    };
    let items: Option<Vec<T>> = items.into_iter().collect();
    items.ok_or_else(|| serde::de::Error::custom("null where an object is expected"))
}

/// The message for an object that is not decoded, with its name and the first field with a wrong type.
fn find_error<T: Item>(json: &[u8], error: &serde_json::Error) -> InvalidObject {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else {
        return InvalidObject(format!("{}: not JSON: {error}", T::KIND));
    };
    let items = match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => match value {
            Value::Array(items) => items,
            other => vec![other],
        },
    };
    for (index, item) in items.iter().enumerate() {
        let decoded = serde_json::to_vec(item)
            .and_then(|json| dra_api::from_slice::<Option<T>>(&json))
            .is_ok_and(|decoded| decoded.is_some());
        if decoded {
            continue;
        }
        let label = match item.pointer("/metadata/name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("item {index}"),
        };
        let mut errors = Vec::new();
        T::check(item, "", &mut errors);
        let message = errors
            .iter()
            .find(|error| prevents_decoding(error))
            .map_or_else(|| error.to_string(), ToString::to_string);
        return InvalidObject(format!("{} {label}: {message}", T::KIND));
    }
    InvalidObject(format!("{}: {error}", T::KIND))
}

/// Whether the error is one of the JSON type. Unknown fields and nulls are accepted.
fn prevents_decoding(error: &FieldError) -> bool {
    !error.message.starts_with("unknown field") && error.message != "must not be null"
}
