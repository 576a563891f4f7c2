//! `SignalListener` for Python.

use std::time::Duration;

use dra_signals::Listener;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Receives the signals of this process in a separate thread, from its creation to the end of the process.
#[pyclass(name = "SignalListener", module = "dra_agent._native", frozen)]
struct PyListener(Listener);

#[pymethods]
impl PyListener {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "pyo3 passes lists by value")]
    fn new(stop: Vec<i32>, other: Vec<i32>) -> PyResult<Self> {
        Ok(Self(Listener::start(&stop, &other)?))
    }

    fn set_grace(&self, seconds: Option<f64>) -> PyResult<()> {
        let grace = seconds
            .map(Duration::try_from_secs_f64)
            .transpose()
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.0.set_grace(grace);
        Ok(())
    }

    fn fileno(&self) -> i32 {
        self.0.fd()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyListener>()
}
