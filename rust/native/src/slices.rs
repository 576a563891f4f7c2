//! `desired_slices` and `diff_slices` for Python.

use dra_api::ResourceSlice;
use dra_slices::{Inventory, diff};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[derive(Serialize)]
struct Writes {
    writes: Vec<dra_slices::Write>,
}

/// Returns the slices to publish for an inventory, and the devices that are left out.
#[pyfunction]
fn desired_slices(py: Python<'_>, inventory: &[u8]) -> PyResult<Vec<u8>> {
    py.detach(|| {
        let inventory: Inventory = serde_json::from_slice(inventory).map_err(invalid)?;
        let desired = dra_slices::desired_slices(inventory).map_err(invalid)?;
        serde_json::to_vec(&desired).map_err(invalid)
    })
}

/// Returns the writes that change the published slices to the desired ones; both are lists of ResourceSlices.
#[pyfunction]
fn diff_slices(py: Python<'_>, desired: &[u8], published: &[u8]) -> PyResult<Vec<u8>> {
    py.detach(|| {
        let desired: Vec<ResourceSlice> = serde_json::from_slice(desired).map_err(invalid)?;
        let published: Vec<ResourceSlice> = serde_json::from_slice(published).map_err(invalid)?;
        let writes = diff(&desired, &published);
        serde_json::to_vec(&Writes { writes }).map_err(invalid)
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(desired_slices, module)?)?;
    module.add_function(wrap_pyfunction!(diff_slices, module)?)
}
