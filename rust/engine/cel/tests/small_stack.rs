//! Expressions of all forms on a thread with a small stack. An overflow ends the process, so a child process runs them.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::thread;

use dra_cel::{DeviceInput, MAX_LENGTH, Program};

const CHILD: &str = "on_a_small_stack";
/// Half of the default stack size of a thread (pthread_create(3)).
const STACK_BYTES: usize = 1 << 20;
/// In a debug build the parser takes more than 100 KiB of stack for one level of parentheses, so only chains are tested.
const LEVELS: &[usize] = if cfg!(debug_assertions) {
    &[100, 1000]
} else {
    &[30, 60, 64, 100, 1000]
};

#[test]
fn no_expression_overflows_the_stack_of_a_thread() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let output = format!(
        "{}\n{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(
        run.status.success(),
        "the expression that is named last: {}: {output}",
        run.status
    );
    assert!(output.contains("1 passed"), "{output}");
}

/// One operator between many operands.
fn chain(operator: &str, operand: &str) -> String {
    let count = MAX_LENGTH / (operator.len() + operand.len());
    vec![operand; count].join(operator)
}

fn around(levels: usize, open: &str, close: &str) -> String {
    format!("{}true{}", open.repeat(levels), close.repeat(levels))
}

#[test]
#[ignore = "an overflow ends its process; the test above runs it in a child process"]
fn on_a_small_stack() {
    let mut expressions: Vec<String> = [
        " in ", "\tin\n", "&&", "||", "+", "-", "*", "/", "%", "==", "<", ".", " ? ", " ? 1 : ",
        ", ",
    ]
    .iter()
    .flat_map(|operator| ["1", "a", "[]", "true"].map(|operand| chain(operator, operand)))
    .collect();
    for &levels in LEVELS {
        for (open, close) in [
            ("(", ")"),
            ("[", "]"),
            ("{1: ", "}"),
            ("!", ""),
            ("- ", ""),
            ("true ? ", " : true"),
            ("1 in [", "]"),
            ("[1].all(x, ", ")"),
            ("size([", "])"),
            ("cel.bind(x, 1, ", ")"),
        ] {
            expressions.push(around(levels, open, close));
        }
    }
    let device = DeviceInput::new("d", &dra_api::Device::default()).unwrap();
    let small = thread::Builder::new().stack_size(STACK_BYTES);
    let answered = small.spawn(move || {
        for expression in expressions {
            let start = expression.get(..40).unwrap_or(&expression);
            println!("{start} ... ({} bytes)", expression.len());
            // An error is a valid result.
            if let Ok(program) = Program::compile_value(&expression) {
                let _ = program.evaluate(&device);
            }
        }
    });
    answered.unwrap().join().unwrap();
}
