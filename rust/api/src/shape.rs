//! How an API object is read and written: absent, null and empty mean the same, and every field knows its JSON name.
//!
//! It does not judge values: limits are the business of `validate`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::quantity::Quantity;
use crate::spelling;

/// One thing that is wrong with one field of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct FieldError {
    /// `spec.devices.requests[0].exactly.count`.
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

/// The JSON form of a type: what is omitted when written, and which JSON values can be read into it.
pub trait Shape: Sized {
    /// Whether the value is left out of the written object.
    fn is_absent(&self) -> bool {
        false
    }

    /// Reports every field of `value` that this type does not know or cannot hold.
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

fn expect(wanted: &str, value: &Value, field: &str, errors: &mut Vec<FieldError>) {
    errors.push(FieldError::new(
        field,
        format!("must be {wanted}, is {}", json_type(value)),
    ));
}

impl Shape for String {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if !value.is_string() {
            expect("a string", value, field, errors);
        }
    }
}

impl Shape for i64 {
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

impl Shape for bool {
    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        if !value.is_boolean() {
            expect("true or false", value, field, errors);
        }
    }
}

impl Shape for Quantity {
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

/// Any JSON: opaque parameters, driver data and other parts that this crate passes through.
impl Shape for Value {
    fn is_absent(&self) -> bool {
        self.is_null()
    }

    fn check(_: &Value, _: &str, _: &mut Vec<FieldError>) {}
}

impl<T: Shape> Shape for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn check(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
        T::check(value, field, errors);
    }
}

impl<T: Shape> Shape for Vec<T> {
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

impl<T: Shape> Shape for BTreeMap<String, T> {
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

/// Reads JSON null as the type's default, as Go's decoder does.
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

/// The JSON name of a field: its own, or the one it was given.
pub(crate) fn wire_name(field: &str, given: Option<&str>) -> String {
    given.map_or_else(|| camel_case(field), str::to_owned)
}

pub(crate) type Check = fn(&Value, &str, &mut Vec<FieldError>);

/// Checks an object against the fields that its type has.
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
                errors.push(FieldError::new(path, spelling::unknown(name, names)));
            }
        }
    }
}
