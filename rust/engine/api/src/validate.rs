//! Validates a user's object as the API server does: fields, types, names and limits.
//!
//! The limits come from Kubernetes 1.37 (k8s.io/api resource/v1 and its validation). CEL expressions are returned for
//! the caller to compile, because this crate does not depend on CEL. Validation is stricter than the API server for
//! input without effect: names with two slashes, capacity requests with a name that no device can have, a constraint
//! with two attributes (the API server ignores the second).

mod allocation;
mod claim;
mod class;
mod device;
mod names;
mod path;
mod policy;
mod slice;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::codec::{ApiType, FieldError};
use crate::meta::{API_VERSION, ObjectMeta};

pub use device::{MAX_ATTRIBUTES_AND_CAPACITIES, MAX_TAINTS};
use path::{Path, Report};
pub use slice::{
    MAX_COUNTER_SETS, MAX_COUNTERS, MAX_DEVICES, MAX_DEVICES_WITH_FEATURES, validate_counter_set,
    validate_device, validate_slice,
};

/// The kinds that can be validated.
pub const KINDS: [&str; 4] = [
    "DeviceClass",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
];

/// A CEL expression of an object, with the path of its field. The caller compiles it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    pub field: String,
    pub text: String,
}

/// The errors of an object, and its CEL expressions.
#[derive(Debug, Default)]
pub struct ValidationResult {
    pub errors: Vec<FieldError>,
    /// Empty if the object could not be decoded.
    pub expressions: Vec<Expression>,
}

/// Validates an object of any of `KINDS`. Unknown fields are errors.
pub fn validate_object(object: &Value) -> ValidationResult {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut result = ValidationResult::default();
    match text("apiVersion") {
        API_VERSION => {}
        "" => result.fail("apiVersion", format!("is missing; write {API_VERSION}")),
        other => result.fail(
            "apiVersion",
            format!("is {other:?}; only {API_VERSION} is read"),
        ),
    }
    match text("kind") {
        "DeviceClass" => result.validate_as(object, class::validate),
        "ResourceClaim" => result.validate_as(object, claim::validate),
        "ResourceClaimTemplate" => result.validate_as(object, claim::validate_template),
        "ResourceSlice" => result.validate_as(object, slice::validate),
        "" => result.fail(
            "kind",
            format!("is missing; known kinds: {}", KINDS.join(", ")),
        ),
        other => result.fail(
            "kind",
            format!("is {other:?}; known kinds: {}", KINDS.join(", ")),
        ),
    }
    result
}

impl ValidationResult {
    fn fail(&mut self, field: &str, message: String) {
        self.errors.push(FieldError::new(field, message));
    }

    fn validate_as<T: ApiType + DeserializeOwned>(
        &mut self,
        object: &Value,
        validate: fn(&T, &mut Report),
    ) {
        let mut type_errors = Vec::new();
        T::check(object, "", &mut type_errors);
        let mut readable = object.clone();
        for error in &type_errors {
            set_null(&mut readable, &error.field);
        }
        match serde_json::from_value::<T>(readable) {
            Ok(read) => {
                let mut report = Report::default();
                validate(&read, &mut report);
                // Fields of a wrong type were set to null; an error that they are missing would be misleading.
                let known = |field: &str| type_errors.iter().any(|error| error.field == field);
                report.errors.retain(|error| !known(&error.field));
                self.errors.extend(type_errors);
                self.errors.extend(report.errors);
                self.expressions = report.expressions;
            }
            // `ApiType::check` reports every type error with its field. An error without one is a defect of `check`.
            Err(error) if type_errors.is_empty() => self.fail("", error.to_string()),
            Err(_) => self.errors.extend(type_errors),
        }
    }
}

/// Sets a field to null, which decodes as absent, so that the rest of the object can be validated.
fn set_null(object: &mut Value, field: &str) {
    let mut value = object;
    for step in field.split(['.', '[', ']']).filter(|step| !step.is_empty()) {
        let next = match value {
            Value::Array(items) => step
                .parse()
                .ok()
                .and_then(|index: usize| items.get_mut(index)),
            Value::Object(members) => members.get_mut(step),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return,
        }
    }
    *value = Value::Null;
}

/// Validates the metadata fields that a user sets.
fn validate_meta(meta: &ObjectMeta, namespaced: bool, report: &mut Report) {
    let root = Path::root();
    let path = root.member("metadata");
    if !meta.name.is_empty() {
        names::subdomain(&meta.name, &path.member("name"), report);
    } else if meta.generate_name.is_empty() {
        report.fail(&path.member("name"), "is missing");
    }
    if !namespaced && !meta.namespace.is_empty() {
        report.fail(
            &path.member("namespace"),
            "must not be set: this kind has no namespace",
        );
    }
    if namespaced && !meta.namespace.is_empty() {
        names::label(&meta.namespace, &path.member("namespace"), report);
    }
    for (key, value) in &meta.labels {
        names::label_name(key, &path.member("labels"), report);
        names::label_value(value, &path.member("labels").key(key), report);
    }
    for key in meta.annotations.keys() {
        names::label_name(&key.to_lowercase(), &path.member("annotations"), report);
    }
}
