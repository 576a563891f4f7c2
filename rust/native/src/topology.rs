//! `Topology` and `UeventSocket` for Python.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dra_topology::{Change, PciAddress, Received, Topology, Uevent, UeventSocket};
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

create_exception!(
    dra_agent._native,
    TopologyError,
    PyValueError,
    "The host's sysfs cannot be read, or an event is invalid."
);

/// The topology of one host. Every method is thread-safe and releases the interpreter's lock while it works.
#[pyclass(name = "Topology", module = "dra_agent._native", frozen)]
struct PyTopology(Mutex<Topology>);

#[pymethods]
impl PyTopology {
    #[staticmethod]
    fn scan(py: Python<'_>, sysfs: PathBuf) -> PyResult<Self> {
        let topology = py
            .detach(|| Topology::scan(sysfs))
            .map_err(topology_error)?;
        Ok(Self(Mutex::new(topology)))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let json = py.detach(|| lock(&self.0).to_json());
        PyBytes::new(py, &json)
    }

    fn devices_to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let json = py.detach(|| lock(&self.0).devices_to_json());
        PyBytes::new(py, &json)
    }

    /// Invalid addresses, and addresses without a device, are ignored.
    fn some_devices_to_json<'py>(
        &self,
        py: Python<'py>,
        addresses: Vec<String>,
    ) -> Bound<'py, PyBytes> {
        let addresses: Vec<PciAddress> = addresses
            .iter()
            .filter_map(|address| PciAddress::parse(address.as_bytes()))
            .collect();
        let json = py.detach(|| lock(&self.0).some_devices_to_json(&addresses));
        PyBytes::new(py, &json)
    }

    fn distance(&self, py: Python<'_>, one: &str, other: &str) -> Option<&'static str> {
        let one = PciAddress::parse(one.as_bytes())?;
        let other = PciAddress::parse(other.as_bytes())?;
        py.detach(|| lock(&self.0).distance(one, other))
            .map(dra_topology::Distance::name)
    }

    fn apply<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let event = Uevent::parse(message).map_err(topology_error)?;
        let change = py
            .detach(|| lock(&self.0).apply(&event))
            .map_err(topology_error)?;
        encode(py, &change)
    }

    fn rescan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let change = py
            .detach(|| lock(&self.0).rescan())
            .map_err(topology_error)?;
        encode(py, &change)
    }
}

/// The kernel's uevents, for an event loop that polls `fileno()`.
#[pyclass(name = "UeventSocket", module = "dra_agent._native", frozen)]
struct PyUeventSocket(Mutex<Option<UeventSocket>>);

#[pymethods]
impl PyUeventSocket {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(UeventSocket::open()?))))
    }

    fn fileno(&self) -> PyResult<i32> {
        match &*lock(&self.0) {
            Some(socket) => Ok(socket.as_fd().as_raw_fd()),
            None => Err(closed()),
        }
    }

    /// Returns at most `limit` pending events, and whether the kernel has dropped some.
    #[pyo3(signature = (limit = 256))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        limit: usize,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, bool)> {
        let mut guard = lock(&self.0);
        let socket = guard.as_mut().ok_or_else(closed)?;
        let (mut events, mut lost) = (Vec::new(), false);
        while events.len() < limit {
            match socket.receive()? {
                Received::Event(event) => events.push(PyBytes::new(py, &event.to_message())),
                Received::Lost => lost = true,
                Received::Empty => break,
            }
        }
        Ok((events, lost))
    }

    fn close(&self) {
        lock(&self.0).take();
    }
}

/// Ignores poisoning: after a panic under the lock, the next rescan repairs the topology.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn encode<'py>(py: Python<'py>, change: &Change) -> PyResult<Bound<'py, PyBytes>> {
    let json = serde_json::to_vec(change).map_err(topology_error)?;
    Ok(PyBytes::new(py, &json))
}

fn topology_error(error: impl std::fmt::Display) -> PyErr {
    TopologyError::new_err(error.to_string())
}

fn closed() -> PyErr {
    PyOSError::new_err("the uevent socket is closed")
}

#[pyfunction]
fn is_vfio_driver(name: &str) -> bool {
    dra_topology::is_vfio_driver(name)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TopologyError", module.py().get_type::<TopologyError>())?;
    module.add_function(wrap_pyfunction!(is_vfio_driver, module)?)?;
    module.add_class::<PyTopology>()?;
    module.add_class::<PyUeventSocket>()
}
