//! Whether an object of a user is one that the API server would take: fields, types, names and limits.
//!
//! The limits are those of Kubernetes 1.37 (k8s.io/api resource/v1 and its validation). CEL expressions are listed
//! for the caller to compile: this crate knows no CEL. Stricter than the API server only where that takes what can
//! never mean anything: names with two slashes, capacity requests that no device can have a name for, a constraint
//! with two attributes of which the second is ignored.

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

use crate::meta::{API_VERSION, ObjectMeta};
use crate::shape::{FieldError, Shape};

pub use device::{MAX_ATTRIBUTES_AND_CAPACITIES, MAX_TAINTS};
use path::{Path, Report};
pub use slice::{
    MAX_COUNTER_SETS, MAX_COUNTERS, MAX_DEVICES, MAX_DEVICES_WITH_FEATURES, validate_counter_set,
    validate_device, validate_slice,
};

/// The kinds that are known here.
pub const KINDS: [&str; 4] = [
    "DeviceClass",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
];

/// A CEL expression of an object, for the caller to compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    pub field: String,
    pub text: String,
}

/// What is known of an object after it was looked at.
#[derive(Debug, Default)]
pub struct Verdict {
    pub errors: Vec<FieldError>,
    /// Empty where fields are wrong already.
    pub expressions: Vec<Expression>,
}

/// Checks an object of any known kind, strictly: a field that is not known is an error.
pub fn validate_object(object: &Value) -> Verdict {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut verdict = Verdict::default();
    match text("apiVersion") {
        API_VERSION => {}
        "" => verdict.fail("apiVersion", format!("is missing; write {API_VERSION}")),
        other => verdict.fail(
            "apiVersion",
            format!("is {other:?}; only {API_VERSION} is read"),
        ),
    }
    match text("kind") {
        "DeviceClass" => verdict.read(object, class::validate),
        "ResourceClaim" => verdict.read(object, claim::validate),
        "ResourceClaimTemplate" => verdict.read(object, claim::validate_template),
        "ResourceSlice" => verdict.read(object, slice::validate),
        "" => verdict.fail(
            "kind",
            format!("is missing; known kinds: {}", KINDS.join(", ")),
        ),
        other => verdict.fail(
            "kind",
            format!("is {other:?}; known kinds: {}", KINDS.join(", ")),
        ),
    }
    verdict
}

impl Verdict {
    fn fail(&mut self, field: &str, message: String) {
        self.errors.push(FieldError::new(field, message));
    }

    fn read<T: Shape + DeserializeOwned>(&mut self, object: &Value, judge: fn(&T, &mut Report)) {
        let mut misshapen = Vec::new();
        T::check(object, "", &mut misshapen);
        let mut readable = object.clone();
        for error in &misshapen {
            forget(&mut readable, &error.field);
        }
        match serde_json::from_value::<T>(readable) {
            Ok(read) => {
                let mut report = Report::default();
                judge(&read, &mut report);
                // What could not be read was taken as absent: that it is missing would be no news.
                let known = |field: &str| misshapen.iter().any(|error| error.field == field);
                report.errors.retain(|error| !known(&error.field));
                self.errors.extend(misshapen);
                self.errors.extend(report.errors);
                self.expressions = report.expressions;
            }
            // The shape check has found it already, with its field; anything else would be its bug.
            Err(error) if misshapen.is_empty() => self.fail("", error.to_string()),
            Err(_) => self.errors.extend(misshapen),
        }
    }
}

/// Sets a field to null, which is read as absent, so that the rest of the object can be looked at.
fn forget(object: &mut Value, field: &str) {
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

/// The parts of the metadata that a user writes.
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
