//! Compares results with those of kube-scheduler's allocator (tests/allocator/corpus.jsonl, and gated.jsonl with feature
//! gates that are off by default), without Python or Go.

#![allow(clippy::unwrap_used)]

use std::path::Path;

mod question;

use dra_allocator::Limits;
use question::{Question, pruning_after};
use serde_json::Value;

fn corpus() -> Vec<(String, Question, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/allocator");
    let mut lines = Vec::new();
    for file in ["corpus.jsonl", "gated.jsonl"] {
        let text = std::fs::read_to_string(directory.join(file)).unwrap();
        for line in text.lines() {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let query = Question::new(&line["question"]);
            let name = format!("{file}, {}", line["name"].as_str().unwrap());
            lines.push((name, query, line["answer"].take()));
        }
    }
    lines
}

/// Without empty members, which the API may leave out, and without the share IDs that were drawn.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| match key.as_str() {
                "parameters" => (key.clone(), member.clone()),
                "shareID" if !is_recorded(member) => (key.clone(), "drawn".into()),
                _ => (key.clone(), bare(member)),
            })
            .filter(|(_, member)| !is_empty(member))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(members) => members.iter().map(bare).collect(),
        other => other.clone(),
    }
}

fn is_recorded(share_id: &Value) -> bool {
    share_id
        .as_str()
        .is_some_and(|id| id.starts_with("00000000-0000-4000-8000"))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(members) => members.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[test]
fn every_recorded_query_has_the_recorded_result() {
    check_answers(Limits::default());
}

#[test]
fn a_search_that_prunes_from_the_start_gives_the_recorded_answers() {
    check_answers(pruning_after(0));
}

fn check_answers(limits: Limits) {
    let corpus = corpus();
    assert!(corpus.len() >= 300);
    for (name, query, wanted) in corpus {
        let answer = query.allocate(limits);
        assert_eq!(answer.allocated, wanted["allocated"], "{name}");
        assert_eq!(answer.error.is_some(), wanted["error"], "{name}");
        let results = serde_json::to_value(&answer.results).unwrap();
        assert_eq!(bare(&results), wanted["results"], "{name}");
    }
}

#[test]
fn every_recorded_query_is_explained() {
    for (name, query, wanted) in corpus() {
        let explanation = query.explain(Limits::default());
        assert_eq!(explanation.fits, wanted["allocated"], "{name}");
        assert_eq!(explanation.error.is_some(), wanted["error"], "{name}");
        assert!(!explanation.summary.is_empty(), "{name}");
    }
}
