//! Validation of API objects of users.

use std::time::Duration;

use dra_api::validate::{self, KINDS, validate_object};
use dra_api::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use dra_cel::Program;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Target;
use crate::json::check_round_trip;

pub const TARGET: Target = Target {
    name: "object",
    check,
    heap_bytes: 128 << 20,
    cpu: Duration::from_secs(10),
};

fn check(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let result = validate_object(&object);
    for error in &result.errors {
        assert!(
            !error.message.is_empty(),
            "an error without a message: {error:?}"
        );
    }
    let again = validate_object(&object);
    assert_eq!(
        again.errors, result.errors,
        "a second validation finds other errors"
    );
    for expression in &result.expressions {
        let _ = Program::check(&expression.text);
    }
    if !result.errors.is_empty() {
        return;
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    assert!(KINDS.contains(&kind), "an object of kind {kind:?} is valid");
    match kind {
        "DeviceClass" => check_valid::<DeviceClass>(&object),
        "ResourceClaim" => check_valid::<ResourceClaim>(&object),
        "ResourceClaimTemplate" => check_valid::<ResourceClaimTemplate>(&object),
        _ => {
            check_valid::<ResourceSlice>(&object);
            let slice = serde_json::from_value(object).expect("it was read before");
            assert_eq!(
                validate::validate_slice(&slice),
                [],
                "a valid slice is refused"
            );
        }
    }
}

/// Checks that a valid object can be decoded, and that its encoding is valid.
fn check_valid<T: Serialize + DeserializeOwned>(object: &Value) {
    let read: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("a valid object is not read: {error}"));
    check_round_trip(&read);
    let bytes = serde_json::to_vec(object).expect("it is JSON");
    let _: T = dra_api::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("a valid object is not read strictly: {error}"));
    let written = serde_json::to_value(&read).expect("it is JSON");
    let errors = validate_object(&written).errors;
    assert!(
        errors.is_empty(),
        "the encoding of a valid object is rejected: {errors:?}"
    );
}
