//! Regular expressions in RE2's syntax: a pattern, a line end, and the text to search.

use std::sync::LazyLock;
use std::time::Duration;

use dra_cel::{DeviceInput, Program};
use serde_json::{Value, json};

use crate::Target;

pub const TARGET: Target = Target {
    name: "pattern",
    check,
    heap_bytes: 128 << 20,
    cpu: Duration::from_secs(30),
};

const DRIVER: &str = "d";
const PATTERN: &str = "device.attributes.d.pattern";
const TEXT: &str = "device.attributes.d.text";

/// `matches`, `find` and `findAll` with a pattern from the device. Compiled once, because compilation is slow.
static COMPUTED: LazyLock<[Program; 3]> = LazyLock::new(|| {
    ["matches", "find", "findAll"].map(|function| {
        Program::compile_value(&format!("{TEXT}.{function}({PATTERN})")).expect("an expression")
    })
});

fn check(data: &[u8]) {
    let Ok(input) = std::str::from_utf8(data) else {
        return;
    };
    let (pattern, text) = input.split_once('\n').unwrap_or((input, "abc 123 ABC"));
    let device = serde_json::from_value(json!({
        "name": "d", "attributes": {"pattern": {"string": pattern}, "text": {"string": text}}
    }))
    .expect("a device");
    let device = DeviceInput::new(DRIVER, &device).expect("a device with two texts");
    let evaluate = |program: &Program| -> Result<Value, String> {
        program.evaluate(&device).map_err(|error| error.to_string())
    };
    let [matches, first, all] = COMPUTED.each_ref().map(evaluate);
    let constant = Program::compile_value(&format!("{TEXT}.matches({})", literal(pattern)))
        .map_err(|error| error.to_string())
        .and_then(|program| evaluate(&program));
    let (Ok(Value::Bool(matches)), Ok(Value::String(first)), Ok(Value::Array(all))) =
        (&matches, &first, &all)
    else {
        // With an invalid pattern every function fails. A search that is too expensive may fail in only one of them.
        let refused = |answer: &Result<Value, String>| {
            answer
                .as_ref()
                .is_err_and(|message| message.contains("is not a regular expression"))
        };
        assert!(
            [&matches, &first, &all]
                .iter()
                .all(|answer| answer.is_err())
                || !refused(&matches),
            "one function takes pattern {pattern:?} and another does not: {matches:?}, {first:?}, {all:?}"
        );
        assert!(
            !refused(&matches) || constant.is_err(),
            "pattern {pattern:?} is refused as a value and taken as a constant"
        );
        return;
    };
    assert_eq!(
        constant,
        Ok(Value::Bool(*matches)),
        "pattern {pattern:?} as a constant, in {text:?}"
    );
    assert_eq!(
        *matches,
        !all.is_empty(),
        "pattern {pattern:?} in {text:?}: found {all:?}"
    );
    let mut rest = text;
    for (index, found) in all.iter().enumerate() {
        let found = found.as_str().unwrap_or_default();
        if index == 0 {
            assert_eq!(
                first, found,
                "the first of what {pattern:?} finds in {text:?}"
            );
        }
        let at = rest.find(found).unwrap_or_else(|| {
            panic!("{pattern:?} finds {found:?}, which is not left in {text:?}")
        });
        rest = &rest[at + found.len()..];
    }
    assert!(
        !all.is_empty() || first.is_empty(),
        "{pattern:?} finds {first:?} in {text:?} once, and never"
    );
}

/// A text as a CEL literal. Few characters are escaped, because the parser's time depends on the length.
fn literal(text: &str) -> String {
    let mut literal = String::from("\"");
    for character in text.chars() {
        if matches!(character, ' '..='~') && !matches!(character, '"' | '\\') {
            literal.push(character);
        } else {
            literal.push_str(&format!("\\U{:08x}", u32::from(character)));
        }
    }
    literal.push('"');
    literal
}
