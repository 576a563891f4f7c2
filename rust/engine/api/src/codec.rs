//! Declares API objects with their JSON encoding: absent, null and empty mean the same.
//!
//! Only the JSON types of fields are checked here; `validate` checks values and limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::quantity::Quantity;
use crate::suggest;

/// An error of one field of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct FieldError {
    /// Path from the root of the object, such as `spec.devices.requests[0].exactly.count`.
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// A type of the API with its JSON form: which values are omitted, and which JSON values it can hold.
pub trait ApiType: Sized {
    /// Whether the encoded object omits the value.
    fn is_absent(&self) -> bool {
        false
    }

    /// Appends an error for each field of `value` that is unknown or has a wrong JSON type. `field` is the path of
    /// `value`.
    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>);
}

/// The name of a JSON value's type, for messages.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn expect(expected: &str, value: &Value, field: &str, errors: &mut Vec<FieldError>) {
    errors.push(FieldError::new(
        field,
        format!("must be {expected}, is {}", json_type(value)),
    ));
}

impl ApiType for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if !value.is_string() {
            expect("a string", value, field, errors);
        }
    }
}

impl ApiType for i64 {
    fn is_absent(&self) -> bool {
        *self == 0
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if value.as_i64().is_none() {
            match value {
                Value::Number(number) => errors.push(FieldError::new(
                    field,
                    format!("must be a whole number of 64 bits, is {number}"),
                )),
                _ => expect("a whole number", value, field, errors),
            }
        }
    }
}

impl ApiType for bool {
    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if !value.is_boolean() {
            expect("true or false", value, field, errors);
        }
    }
}

impl ApiType for Quantity {
    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        let text = match value {
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            _ => return expect("a quantity such as \"40Gi\"", value, field, errors),
        };
        if let Err(error) = Quantity::parse(&text) {
            errors.push(FieldError::new(field, error.to_string()));
        }
    }
}

/// Any JSON: opaque parameters, driver data and other parts that this crate does not interpret.
impl ApiType for Value {
    fn is_absent(&self) -> bool {
        self.is_null()
    }

    fn check(_: &Value, _: &str, _: &mut Vec<FieldError>) {}
}

impl<T: ApiType> ApiType for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        T::check(value, field, errors);
    }
}

impl<T: ApiType> ApiType for Vec<T> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        let Value::Array(items) = value else {
            return expect("a list", value, field, errors);
        };
        for (index, item) in items.iter().enumerate() {
            check_item(item, &format!("{field}[{index}]"), errors, T::check);
        }
    }
}

impl<T: ApiType> ApiType for BTreeMap<String, T> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        let Value::Object(members) = value else {
            return expect("an object", value, field, errors);
        };
        for (key, member) in members {
            check_item(member, &format!("{field}[{key}]"), errors, T::check);
        }
    }
}

fn check_item(
    value: &Value,
    field: &str,
    errors: &mut Vec<FieldError>,
    check: impl Fn(&Value, &str, &mut Vec<FieldError>),
) {
    if value.is_null() {
        errors.push(FieldError::new(field, "must not be null"));
    } else {
        check(value, field, errors);
    }
}

/// Decodes JSON null as the type's default, as Go's decoder does.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// `device_class_name` → `deviceClassName`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

/// Joins a field path and a member's name.
pub(crate) fn member(field: &str, name: &str) -> String {
    if field.is_empty() {
        name.to_owned()
    } else {
        format!("{field}.{name}")
    }
}

/// The JSON name of a field: `explicit`, or the Rust name in camel case.
pub(crate) fn wire_name(field: &str, explicit: Option<&str>) -> String {
    explicit.map_or_else(|| camel_case(field), str::to_owned)
}

pub(crate) type Check = fn(&Value, &str, &mut Vec<FieldError>);

/// Checks the members of a JSON object against the fields of its type.
pub(crate) fn check_members(
    value: &Value,
    field: &str,
    errors: &mut Vec<FieldError>,
    known: &[(String, Check)],
) {
    let Value::Object(members) = value else {
        return expect("an object", value, field, errors);
    };
    for (name, inner) in members {
        let path = member(field, name);
        match known.iter().find(|(known, _)| known == name) {
            Some(_) if inner.is_null() => {}
            Some((_, check)) => check(inner, &path, errors),
            None => {
                let names = known.iter().map(|(name, _)| name.as_str());
                errors.push(FieldError::new(path, suggest::unknown_field(name, names)));
            }
        }
    }
}

/// Declares an API object. Fields are camelCase in JSON, or named by the literal after `=`. Absent fields are omitted.
macro_rules! object {
    ($(#[$meta:meta])* $name:ident { $( $(#[$field_meta:meta])* $field:ident $(= $wire:literal)? : $type:ty ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(
                    default,
                    deserialize_with = "crate::codec::null_as_default",
                    skip_serializing_if = "crate::codec::ApiType::is_absent"
                )]
                $(#[serde(rename = $wire)])?
                pub $field: $type,
            )*
        }

        impl crate::codec::ApiType for $name {
            fn check(value: &serde_json::Value, field: &str, errors: &mut Vec<crate::codec::FieldError>) {
                crate::codec::check_members(value, field, errors, &[
                    $( (
                        crate::codec::wire_name(stringify!($field), None$(.or(Some($wire)))?),
                        <$type as crate::codec::ApiType>::check,
                    ), )*
                ]);
            }
        }
    };
}
pub(crate) use object;
