//! A short pattern with many literal prefixes is one for every function, as a constant and as a computed value.

#![allow(clippy::unwrap_used)]

use dra_cel::{DeviceInput, Program};
use serde_json::json;

/// An optional letter, a class of six and ten digits: hundreds of prefixes, each with a long literal after it. Found by
/// fuzzing.
const PATTERN: &str = "y?[)^x-z!]\\d-\u{8}d-\u{8}\u{19}c\u{19}c?c\u{1}\u{11}\u{4}\0c2z9y1-\u{8}d-\u{8}\u{19}c\u{19}-\u{8}d-\u{8}\u{19}c\u{19}\0\0;";

#[test]
fn a_constant_pattern_with_many_prefixes_is_accepted() {
    let device = serde_json::from_value(json!({
        "name": "d",
        "attributes": {"pattern": {"string": PATTERN}, "text": {"string": "abc 123 ABC"}}
    }))
    .unwrap();
    let device = DeviceInput::new("d", &device).unwrap();
    for pattern in [literal(PATTERN), "device.attributes.d.pattern".into()] {
        for function in ["matches", "find", "findAll"] {
            let expression = format!("device.attributes.d.text.{function}({pattern})");
            let program = Program::compile_value(&expression)
                .unwrap_or_else(|error| panic!("{expression}: {error}"));
            program
                .evaluate(&device)
                .unwrap_or_else(|error| panic!("{expression}: {error}"));
        }
    }
}

fn literal(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|character| format!("\\U{:08x}", u32::from(character)))
        .collect();
    format!("\"{escaped}\"")
}
