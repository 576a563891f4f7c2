//! Queries with very many combinations of devices, few or none of which fit (tests/allocator/hard.jsonl). Each has a result
//! within a number of steps that does not depend on the machine.

#![allow(clippy::unwrap_used)]

use std::path::Path;

mod question;

use dra_allocator::Limits;
use question::Question;
use serde_json::{Value, json};

const MAX_STEPS: u64 = 50_000;

#[test]
fn queries_with_many_equal_combinations_need_few_steps() {
    check_answers(|_| {});
}

#[test]
fn lists_that_no_constraint_compares_take_no_more_steps() {
    check_answers(|question| {
        question["gates"] = json!(["DRAListTypeAttributes"]);
        for_each_device(question, |_, device| {
            device["attributes"]["unused"] = json!({"ints": [1, 2]});
        });
    });
}

/// Each constraint compares a list: the value, and one that is derived from it. Two of them have a value in common if the
/// values are equal.
#[test]
fn lists_that_a_constraint_compares_take_no_more_steps() {
    check_answers(|question| {
        question["gates"] = json!(["DRAListTypeAttributes"]);
        for_each_device(question, |driver, device| {
            let attributes = device["attributes"].as_object().cloned();
            for (name, value) in attributes.into_iter().flatten() {
                let name = match name.split_once('/') {
                    Some(_) => name,
                    None => format!("{driver}/{name}"),
                };
                device["attributes"][format!("{name}List")] = list_of(&value);
            }
        });
        for claim in question["claims"].as_array_mut().unwrap() {
            let constraints = claim["spec"]["devices"]["constraints"].as_array_mut();
            for constraint in constraints.into_iter().flatten() {
                for kind in ["matchAttribute", "distinctAttribute"] {
                    if let Some(name) = constraint[kind].as_str() {
                        constraint[kind] = json!(format!("{name}List"));
                    }
                }
            }
        }
    });
}

fn list_of(value: &Value) -> Value {
    let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
    match value {
        Value::Number(number) => json!({"ints": [number, number.as_i64().unwrap() + 1_000_000]}),
        Value::String(text) => json!({format!("{kind}s"): [format!("{text}-derived"), text]}),
        other => json!({format!("{kind}s"): [other]}),
    }
}

/// Gates whose fields no device has change no rule.
#[test]
fn gates_without_their_fields_take_no_more_steps() {
    check_answers(|question| {
        question["gates"] = json!(["DRAListTypeAttributes", "DRAOptionalNodeOperations"]);
    });
}

/// All operations can be skipped.
#[test]
fn skipped_operations_take_no_more_steps() {
    check_answers(|question| {
        question["gates"] = json!(["DRAOptionalNodeOperations"]);
        if question["node"].is_string() {
            question["node"] = json!({"metadata": {"name": question["node"]}});
        }
        question["node"]["status"] = json!({"declaredFeatures": ["DRAOptionalNodeOperations"]});
        for slice in question["slices"].as_array_mut().unwrap() {
            if slice["spec"]["devices"].is_array() {
                slice["spec"]["skipNodeOperations"] = json!(["*"]);
            }
        }
    });
}

/// Calls `change` with the driver of each device and the device.
fn for_each_device(question: &mut Value, mut change: impl FnMut(&str, &mut Value)) {
    for slice in question["slices"].as_array_mut().unwrap() {
        let driver = slice["spec"]["driver"].as_str().unwrap().to_owned();
        let devices = slice["spec"]["devices"].as_array_mut();
        for device in devices.into_iter().flatten() {
            change(&driver, device);
        }
    }
}

fn check_answers(change: impl Fn(&mut Value)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/allocator/hard.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        change(&mut line["question"]);
        let limits = Limits {
            max_steps: MAX_STEPS,
            ..Limits::default()
        };
        let answer = Question::new(&line["question"]).allocate(limits);
        let error = answer.error.unwrap_or_default();
        let given_up = error.contains("no result within");
        if given_up || line["error"] == error.is_empty() || line["allocated"] != answer.allocated {
            wrong.push(format!(
                "{}: allocated is {}, error {error:?}",
                line["name"], answer.allocated
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
