//! `Ledger` for Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dra_ledger::{Entry, Error, FileSystem, LeaseHistory, Ledger};
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

create_exception!(
    dra_agent._native,
    LedgerError,
    PyValueError,
    "Base class of the errors of a ledger; the message contains the fix."
);
create_exception!(
    dra_agent._native,
    LedgerConflictError,
    LedgerError,
    "Another claim holds the device; the message names it."
);
create_exception!(
    dra_agent._native,
    LedgerIoError,
    LedgerError,
    "A file operation failed, or another process holds the lease; nothing changed, and the same call may succeed later."
);
create_exception!(
    dra_agent._native,
    LedgerUsageError,
    LedgerError,
    "The call is invalid: no such claim, not an entry, or another process or a newer version uses the ledger."
);

/// A ledger. Every method is thread-safe and releases the interpreter's lock while it waits for the disk.
#[pyclass(name = "Ledger", module = "dra_agent._native", frozen)]
struct PyLedger(Mutex<Option<Arc<Ledger>>>);

#[pymethods]
impl PyLedger {
    #[staticmethod]
    fn open(py: Python<'_>, state_dir: PathBuf, boot_id: &str) -> PyResult<Self> {
        let ledger = py
            .detach(|| Ledger::open(&state_dir, boot_id))
            .map_err(to_py_err)?;
        Ok(Self(Mutex::new(Some(Arc::new(ledger)))))
    }

    #[staticmethod]
    fn open_shared(
        py: Python<'_>,
        state_dir: PathBuf,
        boot_id: &str,
        label: &str,
        timeout: f64,
    ) -> PyResult<Self> {
        let (disk, timeout) = (Arc::new(FileSystem), seconds(timeout)?);
        let ledger = py
            .detach(|| Ledger::open_shared(disk, &state_dir, boot_id, label, timeout))
            .map_err(to_py_err)?;
        Ok(Self(Mutex::new(Some(Arc::new(ledger)))))
    }

    fn acquire_lease(&self, py: Python<'_>, timeout: f64) -> PyResult<&'static str> {
        let (ledger, timeout) = (self.ledger()?, seconds(timeout)?);
        let history = py
            .detach(|| ledger.acquire_lease(timeout))
            .map_err(to_py_err)?;
        Ok(match history {
            LeaseHistory::Unchanged => "unchanged",
            LeaseHistory::Released => "released",
            LeaseHistory::Abandoned => "abandoned",
        })
    }

    fn release_lease(&self, py: Python<'_>) -> PyResult<()> {
        let ledger = self.ledger()?;
        py.detach(|| ledger.release_lease()).map_err(to_py_err)
    }

    #[getter]
    fn is_lease_contended(&self) -> PyResult<bool> {
        Ok(self.ledger()?.is_lease_contended())
    }

    #[pyo3(signature = (entry, durable = true))]
    fn start(&self, py: Python<'_>, entry: &[u8], durable: bool) -> PyResult<()> {
        let entry: Entry = serde_json::from_slice(entry).map_err(invalid_entry)?;
        let ledger = self.ledger()?;
        py.detach(|| ledger.start(entry, durable))
            .map_err(to_py_err)
    }

    #[pyo3(signature = (uid, payload = None))]
    fn complete(&self, py: Python<'_>, uid: &str, payload: Option<&[u8]>) -> PyResult<()> {
        let payload = serde_json::from_slice(payload.unwrap_or(b"null")).map_err(invalid_entry)?;
        let ledger = self.ledger()?;
        py.detach(|| ledger.complete(uid, payload))
            .map_err(to_py_err)
    }

    fn release(&self, py: Python<'_>, uid: &str) -> PyResult<bool> {
        let ledger = self.ledger()?;
        py.detach(|| ledger.release(uid)).map_err(to_py_err)
    }

    fn get<'py>(&self, py: Python<'py>, uid: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let ledger = self.ledger()?;
        let entry = py.detach(|| ledger.get(uid));
        entry.map(|entry| json(py, entry.as_ref())).transpose()
    }

    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let ledger = self.ledger()?;
        let entries = py.detach(|| ledger.entries());
        let entries: Vec<&Entry> = entries.iter().map(AsRef::as_ref).collect();
        json(py, &entries)
    }

    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let ledger = self.ledger()?;
        json(py, &py.detach(|| ledger.report()))
    }

    #[getter]
    fn compaction_due(&self, py: Python<'_>) -> PyResult<bool> {
        let ledger = self.ledger()?;
        Ok(py.detach(|| ledger.compaction_due()))
    }

    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        let ledger = self.ledger()?;
        py.detach(|| ledger.compact()).map_err(to_py_err)
    }

    /// Releases the lock after the calls in progress have ended.
    fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl PyLedger {
    fn ledger(&self) -> PyResult<Arc<Ledger>> {
        let ledger = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        ledger.ok_or_else(|| LedgerUsageError::new_err("the ledger is closed"))
    }
}

fn json<'py, T: Serialize>(py: Python<'py>, value: &T) -> PyResult<Bound<'py, PyBytes>> {
    let text =
        serde_json::to_vec(value).map_err(|error| LedgerError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &text))
}

fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout.max(0.0))
        .map_err(|error| LedgerUsageError::new_err(error.to_string()))
}

fn invalid_entry(error: serde_json::Error) -> PyErr {
    LedgerUsageError::new_err(format!("not an entry for the ledger: {error}"))
}

fn to_py_err(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Held(_) => LedgerConflictError::new_err(text),
        Error::Io { .. } | Error::Busy { .. } => LedgerIoError::new_err(text),
        Error::Locked { .. } | Error::Unsupported { .. } | Error::Usage(_) => {
            LedgerUsageError::new_err(text)
        }
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("LedgerError", py.get_type::<LedgerError>())?;
    module.add("LedgerConflictError", py.get_type::<LedgerConflictError>())?;
    module.add("LedgerIoError", py.get_type::<LedgerIoError>())?;
    module.add("LedgerUsageError", py.get_type::<LedgerUsageError>())?;
    module.add_class::<PyLedger>()
}
