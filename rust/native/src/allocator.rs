//! `Cluster` for Python, on JSON. It releases the interpreter's lock while it computes.

use dra_allocator::{Cluster, Gates, InvalidObject, Limits, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyCluster>()
}

/// The objects of a cluster. Every method is thread-safe.
#[pyclass(name = "Cluster", module = "dra_agent._native", frozen)]
struct PyCluster(Cluster);

#[pymethods]
impl PyCluster {
    #[new]
    fn new(gates: Vec<String>, scheduler_minor: u32) -> PyResult<Self> {
        let gates =
            Gates::named(gates.iter().map(String::as_str)).map_err(PyValueError::new_err)?;
        Ok(Self(Cluster::with_gates(gates.of_minor(scheduler_minor))))
    }

    fn update_slices(&self, py: Python<'_>, slices: &[u8], new: bool) -> PyResult<()> {
        py.detach(|| self.0.update_slices(slices, new))
            .map_err(invalid)
    }

    fn delete_slice(&self, py: Python<'_>, name: &str) -> bool {
        py.detach(|| self.0.delete_slice(name))
    }

    fn update_classes(&self, py: Python<'_>, classes: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.update_classes(classes))
            .map_err(invalid)
    }

    fn delete_class(&self, py: Python<'_>, name: &str) -> bool {
        py.detach(|| self.0.delete_class(name))
    }

    fn update_nodes(&self, py: Python<'_>, nodes: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.update_nodes(nodes)).map_err(invalid)
    }

    fn delete_node(&self, py: Python<'_>, name: &str) -> bool {
        py.detach(|| self.0.delete_node(name))
    }

    fn hold(&self, py: Python<'_>, claims: &[u8], skip_pending: bool) -> PyResult<()> {
        py.detach(|| self.0.hold(claims, skip_pending))
            .map_err(invalid)
    }

    fn release(&self, py: Python<'_>, claims: &[u8]) -> PyResult<usize> {
        py.detach(|| self.0.release(claims)).map_err(invalid)
    }

    fn allocate(
        &self,
        py: Python<'_>,
        node: &str,
        claims: &[u8],
        deadline_ms: u64,
        share_id_seed: u64,
        ignore_held: bool,
    ) -> PyResult<Vec<u8>> {
        let options = options(deadline_ms, share_id_seed, ignore_held);
        py.detach(|| to_json(self.0.allocate(node, claims, options)))
    }

    fn explain(
        &self,
        py: Python<'_>,
        node: &str,
        claims: &[u8],
        deadline_ms: u64,
        share_id_seed: u64,
        ignore_held: bool,
    ) -> PyResult<Vec<u8>> {
        let options = options(deadline_ms, share_id_seed, ignore_held);
        py.detach(|| to_json(self.0.explain(node, claims, options)))
    }

    fn fits(
        &self,
        py: Python<'_>,
        nodes: Option<Vec<String>>,
        claims: &[u8],
        deadline_ms: u64,
        ignore_held: bool,
    ) -> PyResult<Vec<u8>> {
        let options = options(deadline_ms, 0, ignore_held);
        py.detach(|| to_json(self.0.fits(nodes.as_deref(), claims, options)))
    }

    // The arguments are those of the Python method.
    #[allow(clippy::too_many_arguments)]
    fn capacity(
        &self,
        py: Python<'_>,
        nodes: Option<Vec<String>>,
        claims: &[u8],
        shared: &[u8],
        limit: u64,
        deadline_ms: u64,
        ignore_held: bool,
    ) -> PyResult<Vec<u8>> {
        let options = options(deadline_ms, 0, ignore_held);
        py.detach(|| {
            to_json(
                self.0
                    .capacity(nodes.as_deref(), claims, shared, limit, options),
            )
        })
    }

    fn counts(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        py.detach(|| to_json(Ok(self.0.counts())))
    }
}

fn options(deadline_ms: u64, share_id_seed: u64, ignore_held: bool) -> Options {
    Options {
        limits: Limits {
            deadline_ms,
            share_id_seed,
            ..Limits::default()
        },
        ignore_held,
    }
}

fn to_json<A: serde::Serialize>(result: Result<A, InvalidObject>) -> PyResult<Vec<u8>> {
    serde_json::to_vec(&result.map_err(invalid)?).map_err(invalid_json)
}

fn invalid(error: InvalidObject) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn invalid_json(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
