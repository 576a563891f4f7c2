//! Queries with very many combinations of devices, few or none of which fit (tests/allocator/hard.jsonl). Each has a result
//! within a number of steps that does not depend on the machine.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use dra_allocator::{Query, allocate};
use serde_json::{Value, json};

const MAX_STEPS: u64 = 50_000;

#[test]
fn questions_with_many_equal_combinations_are_answered_in_few_steps() {
    check_answers(|_| {});
}

#[test]
fn lists_that_no_constraint_compares_take_no_more_steps() {
    check_answers(|question| {
        question["gates"] = json!(["DRAListTypeAttributes"]);
        for slice in question["slices"].as_array_mut().unwrap() {
            for device in slice["spec"]["devices"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                device["attributes"]["unused"] = json!({"ints": [1, 2]});
            }
        }
    });
}

fn check_answers(change: impl Fn(&mut Value)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/allocator/hard.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        change(&mut line["question"]);
        let mut query: Query = serde_json::from_value(line["question"].take()).unwrap();
        query.limits.max_steps = MAX_STEPS;
        let answer = allocate(&query);
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
