//! The recorded answers of kube-scheduler's allocator (tests/allocator/corpus.jsonl), without Python or Go.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use dra_allocator::{Question, allocate, explain};
use serde_json::Value;

fn corpus() -> Vec<(String, Question, Value)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/allocator/corpus.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let question = serde_json::from_value(line["question"].take()).unwrap();
        let name = line["name"].as_str().unwrap().to_owned();
        lines.push((name, question, line["answer"].take()));
    }
    lines
}

/// Driver, pool and device of everything allocated, by claim.
fn devices(results: &Value) -> Vec<Vec<[String; 4]>> {
    let name = |device: &Value, key: &str| device[key].as_str().unwrap_or_default().to_owned();
    let of_claim = |result: &Value| {
        let devices = result["devices"]["results"].as_array();
        let devices = devices.map_or(&[][..], Vec::as_slice);
        devices
            .iter()
            .map(|device| ["request", "driver", "pool", "device"].map(|key| name(device, key)))
            .collect()
    };
    results.as_array().unwrap().iter().map(of_claim).collect()
}

#[test]
fn every_recorded_question_gets_the_recorded_devices() {
    let corpus = corpus();
    assert!(corpus.len() >= 300);
    for (name, question, wanted) in corpus {
        let answer = allocate(&question);
        assert_eq!(answer.allocated, wanted["allocated"], "{name}");
        assert_eq!(answer.error.is_some(), wanted["error"], "{name}");
        let results = serde_json::to_value(&answer.results).unwrap();
        assert_eq!(devices(&results), devices(&wanted["results"]), "{name}");
    }
}

#[test]
fn every_recorded_question_is_explained() {
    for (name, question, wanted) in corpus() {
        let explanation = explain(&question);
        assert_eq!(explanation.fits, wanted["allocated"], "{name}");
        assert_eq!(explanation.error.is_some(), wanted["error"], "{name}");
        assert!(!explanation.summary.is_empty(), "{name}");
    }
}
