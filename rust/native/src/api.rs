//! `dra-api` for Python: validation of objects including their CEL expressions, and arithmetic of quantities.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dra_api::validate::Expression;
use dra_api::{FieldError, Quantity, validate};
use dra_cel::Program;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::Value;

/// The timeout for compiling all expressions of one object.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn quantity(text: &str) -> PyResult<Quantity> {
    Quantity::parse(text).map_err(invalid)
}

/// Returns the errors of an object, as a JSON list of {field, message}.
#[pyfunction]
fn validate_object(py: Python<'_>, object: &[u8]) -> PyResult<Vec<u8>> {
    py.detach(|| {
        let object: Value = serde_json::from_slice(object).map_err(invalid)?;
        let mut result = validate::validate_object(&object);
        result.errors.extend(compile_errors(result.expressions));
        serde_json::to_vec(&result.errors).map_err(invalid)
    })
}

/// Returns the expressions that do not compile. Compiles equal texts once. Expressions that are not compiled when the
/// timeout expires are errors too.
fn compile_errors(expressions: Vec<Expression>) -> Vec<FieldError> {
    let deadline = Instant::now() + VALIDATION_TIMEOUT;
    let mut known: HashMap<String, Option<String>> = HashMap::new();
    let mut errors = Vec::new();
    for Expression { field, text } in expressions {
        if !known.contains_key(&text) && Instant::now() >= deadline {
            let seconds = VALIDATION_TIMEOUT.as_secs();
            let message = format!(
                "not checked: compiling the expressions of the object takes longer than {seconds} s"
            );
            errors.push(FieldError::new(field, message));
            break;
        }
        let answer = known.entry(text).or_insert_with_key(|text| {
            Program::check(text)
                .err()
                .map(|error| format!("does not compile: {error}"))
        });
        if let Some(message) = answer {
            errors.push(FieldError::new(field, message.clone()));
        }
    }
    errors
}

/// Returns the value of a quantity in whole units, rounded away from zero.
#[pyfunction]
fn quantity_value(text: &str) -> PyResult<i64> {
    Ok(quantity(text)?.value())
}

/// Returns the canonical form of a quantity: `1536Mi` for `1.5Gi`.
#[pyfunction]
fn quantity_canonical(text: &str) -> PyResult<String> {
    Ok(quantity(text)?.to_string())
}

/// Returns -1, 0 or 1 if `left` is less than, equal to or greater than `right`.
#[pyfunction]
fn quantity_compare(left: &str, right: &str) -> PyResult<i8> {
    Ok(quantity(left)?.cmp(&quantity(right)?) as i8)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(validate_object, module)?)?;
    module.add_function(wrap_pyfunction!(quantity_value, module)?)?;
    module.add_function(wrap_pyfunction!(quantity_canonical, module)?)?;
    module.add_function(wrap_pyfunction!(quantity_compare, module)?)
}
