//! `desired_slices`, `KeptSlices` and `diff_slices` for Python.

use std::sync::{Mutex, PoisonError};

use dra_api::ResourceSlice;
use dra_slices::{Inventory, Problem, diff};
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

/// The slices of some pools, kept decoded, because each change of a device is computed over the last result.
#[pyclass(name = "KeptSlices", module = "dra_agent._native", frozen)]
struct PyKeptSlices(Mutex<Vec<ResourceSlice>>);

#[derive(Serialize)]
struct Changed<'a> {
    /// `None` for a slice that is equal to the last one at this position.
    slices: Vec<Option<&'a ResourceSlice>>,
    problems: &'a [Problem],
}

#[pymethods]
impl PyKeptSlices {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Computes the slices of an inventory, whose published slices are the last result; returns those that differ.
    fn update(&self, py: Python<'_>, inventory: &[u8]) -> PyResult<Vec<u8>> {
        py.detach(|| {
            let mut inventory: Inventory = serde_json::from_slice(inventory).map_err(invalid)?;
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            inventory.published = std::mem::take(&mut kept);
            let result = dra_slices::take_desired_slices(&mut inventory);
            let last = inventory.published;
            let desired = match result {
                Ok(desired) => desired,
                Err(error) => {
                    *kept = last;
                    return Err(invalid(error));
                }
            };
            let slices = desired
                .slices
                .iter()
                .enumerate()
                .map(|(at, slice)| (last.get(at) != Some(slice)).then_some(slice))
                .collect();
            let changed = Changed {
                slices,
                problems: &desired.problems,
            };
            let encoded = serde_json::to_vec(&changed).map_err(invalid)?;
            *kept = desired.slices;
            Ok(encoded)
        })
    }
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
    module.add_class::<PyKeptSlices>()?;
    module.add_function(wrap_pyfunction!(desired_slices, module)?)?;
    module.add_function(wrap_pyfunction!(diff_slices, module)?)
}
