//! CEL expressions: compilation, and evaluation on a device.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use dra_cel::{COST_LIMIT, CompileError, DeviceInput, EvalError, MEMORY_LIMIT_BYTES, Program};
use serde_json::Value;

use crate::Target;
use crate::sample::one_in;

pub const TARGET: Target = Target {
    name: "cel",
    check,
    // The heap takes at most twice the memory limit of an evaluation (rust/engine/cel/tests/memory.rs), and the
    // result as JSON.
    heap_bytes: 3 * MEMORY_LIMIT_BYTES,
    cpu: Duration::from_secs(30),
};

/// Of so many inputs one is compiled in all ways. The parser takes most of the time, and most inputs are not expressions.
const COMPILED_TWICE: u32 = 4;
const REFUSED_TWICE: u32 = 16;

pub(crate) static DEVICE: LazyLock<DeviceInput> = LazyLock::new(|| {
    let device = serde_json::from_str(
        r#"{
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "H100"}, "index": {"int": 3}, "shared": {"bool": true},
                "driverVersion": {"version": "550.54.15"}, "list": {"strings": ["a", "H100"]},
                "ints": {"ints": [1, 2, 3]}, "versions": {"versions": ["1.2.3", "0.1.0"]},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
                "resource.kubernetes.io/numaNode": {"int": 0}
            },
            "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "132"}, "fraction": {"value": "1.5"}},
            "allowMultipleAllocations": true
        }"#,
    )
    .expect("a device");
    DeviceInput::new("gpu.example.com", &device).expect("a valid device")
});

fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let program = match Program::compile_value(text) {
        Ok(program) => program,
        Err(error) => {
            assert!(
                !error.to_string().is_empty(),
                "an error without a message for {text:?}"
            );
            if one_in(REFUSED_TWICE, data) {
                let selector = Program::compile(text);
                assert!(
                    selector.is_err(),
                    "{text:?} is a selector but not an expression: {error}"
                );
                compare_with_check(text, &selector);
            }
            return;
        }
    };
    let selector = Program::compile(text);
    if one_in(COMPILED_TWICE, data) {
        compare_with_check(text, &selector);
    }
    let value = program.evaluate(&DEVICE);
    if value == Err(EvalError::Deadline) {
        return;
    }
    let cost = program.cost(&DEVICE);
    if value.is_ok() {
        assert!(cost <= COST_LIMIT, "{text:?} has a value and costs {cost}");
    }
    assert_eq!(
        program.evaluate(&DEVICE),
        value,
        "a second evaluation of {text:?} differs"
    );
    if let Ok(selector) = selector {
        check_selector(text, &selector, &value);
    }
    if one_in(COMPILED_TWICE, data) {
        check_in_parentheses(text, &value, cost);
    }
}

fn compare_with_check(text: &str, selector: &Result<Program, CompileError>) {
    assert_eq!(
        Program::check(text).err(),
        selector.as_ref().err().cloned(),
        "check and compile differ for {text:?}"
    );
}

fn check_selector(text: &str, selector: &Program, value: &Result<Value, EvalError>) {
    let matches = selector.matches_until(&DEVICE, Instant::now() + Duration::from_secs(10));
    match value {
        Ok(Value::Bool(answer)) => {
            assert_eq!(
                matches,
                Ok(*answer),
                "{text:?} as a selector and as an expression"
            );
        }
        _ => assert!(
            matches.is_err(),
            "{text:?} matches, but its value is {value:?}"
        ),
    }
}

/// Parentheses change neither the value nor the cost. Positions in messages move, so errors are compared as such.
fn check_in_parentheses(text: &str, value: &Result<Value, EvalError>, cost: u64) {
    let Ok(same) = Program::compile_value(&format!("({text}\n)")) else {
        // One level of nesting or two bytes too many.
        return;
    };
    let other = same.evaluate(&DEVICE);
    assert_eq!(
        other.as_ref().ok(),
        value.as_ref().ok(),
        "{text:?} in parentheses"
    );
    if value.is_ok() {
        assert_eq!(
            same.cost(&DEVICE),
            cost,
            "the cost of {text:?} in parentheses"
        );
    }
}
