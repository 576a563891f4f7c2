//! Devices: validation in a slice, and evaluation by selectors.

use std::time::Duration;

use dra_api::validate::validate_slice;
use dra_api::{Device, DeviceAttribute, ResourceSlice};
use dra_cel::{DeviceInput, EvalError, Program};
use serde_json::{Value, json};

use crate::Target;
use crate::json::{check_round_trip, read};

pub const TARGET: Target = Target {
    name: "device",
    check,
    heap_bytes: 64 << 20,
    cpu: Duration::from_secs(5),
};

const DRIVER: &str = "gpu.example.com";
/// Maximum number of evaluated attributes and capacities of one device, because each needs a compilation.
const MAX_EXPRESSIONS: usize = 4;

fn check(data: &[u8]) {
    let Some(device) = read::<Device>(data) else {
        return;
    };
    check_round_trip(&device);
    let errors = validate_slice(&slice_of(&device));
    assert_eq!(
        validate_slice(&slice_of(&device)),
        errors,
        "a second validation finds other errors"
    );
    let input = match DeviceInput::new(DRIVER, &device) {
        Ok(input) => input,
        Err(error) => {
            assert!(
                !errors.is_empty(),
                "a valid device cannot be converted for expressions: {error}"
            );
            assert!(
                matches!(&error, EvalError::Device { attribute, .. } if device.attributes.contains_key(attribute)),
                "an error of no attribute: {error}"
            );
            return;
        }
    };
    let ask = |expression: &str| {
        let program = Program::compile_value(expression)
            .unwrap_or_else(|error| panic!("{expression} does not compile: {error}"));
        program.evaluate(&input)
    };
    assert_eq!(ask("device.driver"), Ok(json!(DRIVER)));
    assert_eq!(
        ask("device.allowMultipleAllocations"),
        Ok(json!(device.allow_multiple_allocations.unwrap_or(false)))
    );
    for (name, attribute) in device.attributes.iter().take(MAX_EXPRESSIONS) {
        let Some(place) = place("attributes", name, |other| {
            device.attributes.contains_key(other)
        }) else {
            continue;
        };
        let (expression, wanted) = match value_of(attribute) {
            Expected::Json(value) => (place, value),
            Expected::Version(text) => (
                format!("{place}.compareTo(semver({}))", json!(text)),
                json!(0),
            ),
            Expected::Other => continue,
        };
        assert_eq!(
            ask(&expression),
            Ok(wanted),
            "{expression} of {attribute:?}"
        );
    }
    for (name, capacity) in device.capacity.iter().take(MAX_EXPRESSIONS) {
        let Some(place) = place("capacity", name, |other| {
            device.capacity.contains_key(other)
        }) else {
            continue;
        };
        let text = capacity.value.to_string();
        // An invalid constant quantity is a compile error (docs/reference/cel.md), and a canonical form may be invalid.
        let Ok(program) =
            Program::compile_value(&format!("{place}.compareTo(quantity({}))", json!(text)))
        else {
            continue;
        };
        assert_eq!(program.evaluate(&input), Ok(json!(0)), "{place} is {text}");
    }
}

fn slice_of(device: &Device) -> ResourceSlice {
    let mut slice: ResourceSlice = serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
        "spec": {
            "driver": DRIVER, "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        },
    }))
    .expect("a slice");
    slice.spec.devices = vec![device.clone()];
    slice
}

/// The expression for a name. `None` if a name with the driver's domain shadows it, or if it needs complex escapes.
fn place(map: &str, name: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let (domain, id) = name.split_once('/').unwrap_or((DRIVER, name));
    let other = match name.split_once('/') {
        Some(_) => id.to_owned(),
        None => format!("{DRIVER}/{name}"),
    };
    let plain = name.len() < 100 && name.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    (plain && !(domain == DRIVER && has(&other)))
        .then(|| format!("device.{map}[{}][{}]", json!(domain), json!(id)))
}

enum Expected {
    Json(Value),
    Version(String),
    Other,
}

fn value_of(attribute: &DeviceAttribute) -> Expected {
    let written = serde_json::to_value(attribute).expect("it is JSON");
    match written
        .as_object()
        .map(|members| members.iter().collect::<Vec<_>>())
        .as_deref()
    {
        Some([(kind, Value::String(text))]) if *kind == "version" => {
            Expected::Version(text.clone())
        }
        Some([(kind, value)]) if *kind != "versions" => Expected::Json((*value).clone()),
        _ => Expected::Other,
    }
}
