//! Evaluates expressions on devices: one JSON object per line in and out, in the form of `tests/oracle/cel`.

use std::io::{self, BufRead, Write};

use dra_cel::{DeviceInput, EvalError, Program};
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", evaluate(&request))?;
    }
    Ok(())
}

fn evaluate(request: &Value) -> Value {
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    let program = match Program::compile(&text("expr")) {
        Ok(program) => program,
        Err(error) => return json!({"compile_error": error.to_string()}),
    };
    let device = serde_json::from_value(request["device"].clone()).unwrap_or_default();
    let device = match DeviceInput::new(&text("driver"), &device) {
        Ok(device) => device,
        Err(error) => return json!({"runtime_error": error.to_string()}),
    };
    match program.matches(&device) {
        Ok(result) => json!({"result": result, "cost": program.cost(&device)}),
        Err(error @ EvalError::Device { .. }) => json!({"runtime_error": error.to_string()}),
        Err(error) => json!({"runtime_error": error.to_string(), "cost": program.cost(&device)}),
    }
}
