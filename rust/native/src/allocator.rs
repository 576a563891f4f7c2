//! `allocate` and `explain` on JSON; the answer is computed without the interpreter's lock.

use dra_allocator::Question;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(allocate, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)
}

#[pyfunction]
fn allocate(py: Python<'_>, question: &[u8]) -> PyResult<Vec<u8>> {
    answer(py, question, dra_allocator::allocate)
}

#[pyfunction]
fn explain(py: Python<'_>, question: &[u8]) -> PyResult<Vec<u8>> {
    answer(py, question, dra_allocator::explain)
}

fn answer<A: serde::Serialize>(
    py: Python<'_>,
    question: &[u8],
    ask: impl Fn(&Question) -> A + Send + Sync,
) -> PyResult<Vec<u8>> {
    py.detach(|| {
        let question: Question = dra_api::from_slice(question).map_err(unreadable)?;
        serde_json::to_vec(&ask(&question)).map_err(unreadable)
    })
}

fn unreadable(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
