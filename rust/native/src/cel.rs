//! `CelExpression` for Python.

use dra_cel::{DeviceInput, Program};
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(
    dra_agent._native,
    CelError,
    PyValueError,
    "The expression does not compile, has no value for a device, or the device is not valid JSON."
);

/// A compiled expression. Every method is thread-safe and releases the interpreter's lock while it computes.
#[pyclass(name = "CelExpression", module = "dra_agent._native", frozen)]
struct PyExpression(Program);

#[pymethods]
impl PyExpression {
    /// Compiles an expression of any type; `matches` fails if its value is not a bool.
    #[new]
    fn new(py: Python<'_>, expression: &str) -> PyResult<Self> {
        py.detach(|| Program::compile_value(expression))
            .map(Self)
            .map_err(cel_error)
    }

    /// Compiles an expression, and refuses those that a claim's selector cannot contain.
    #[staticmethod]
    fn selector(py: Python<'_>, expression: &str) -> PyResult<Self> {
        py.detach(|| Program::compile(expression))
            .map(Self)
            .map_err(cel_error)
    }

    fn matches(&self, py: Python<'_>, driver: &str, device: &[u8]) -> PyResult<bool> {
        py.detach(|| self.0.matches(&input(driver, device)?).map_err(cel_error))
    }

    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        driver: &str,
        device: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let json = py.detach(|| {
            let value = self
                .0
                .evaluate(&input(driver, device)?)
                .map_err(cel_error)?;
            serde_json::to_vec(&value).map_err(cel_error)
        })?;
        Ok(PyBytes::new(py, &json))
    }

    /// Returns the cost of an evaluation in the units of Kubernetes. The limit is 1,000,000.
    fn cost(&self, py: Python<'_>, driver: &str, device: &[u8]) -> PyResult<u64> {
        py.detach(|| Ok(self.0.cost(&input(driver, device)?)))
    }
}

fn input(driver: &str, device: &[u8]) -> PyResult<DeviceInput> {
    let device: dra_api::Device = serde_json::from_slice(device).map_err(cel_error)?;
    DeviceInput::new(driver, &device).map_err(cel_error)
}

fn cel_error(error: impl ToString) -> PyErr {
    CelError::new_err(error.to_string())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CelError", module.py().get_type::<CelError>())?;
    module.add_class::<PyExpression>()
}
