//! `allocate` and `explain` for Python, on JSON. They release the interpreter's lock while they compute.

use dra_allocator::Query;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(allocate, module)?)?;
    module.add_function(wrap_pyfunction!(explain, module)?)
}

#[pyfunction]
fn allocate(py: Python<'_>, query: &[u8]) -> PyResult<Vec<u8>> {
    run(py, query, dra_allocator::allocate)
}

#[pyfunction]
fn explain(py: Python<'_>, query: &[u8]) -> PyResult<Vec<u8>> {
    run(py, query, dra_allocator::explain)
}

fn run<A: serde::Serialize>(
    py: Python<'_>,
    query: &[u8],
    compute: impl Fn(&Query) -> A + Send + Sync,
) -> PyResult<Vec<u8>> {
    py.detach(|| {
        let query: Query = dra_api::from_slice(query).map_err(invalid_json)?;
        serde_json::to_vec(&compute(&query)).map_err(invalid_json)
    })
}

fn invalid_json(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
