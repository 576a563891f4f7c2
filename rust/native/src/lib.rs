//! The Python bindings of the other crates: one file per crate, without logic.
//!
//! Structured values are passed as JSON bytes, which both sides decode into their own types. Only the JSON of files, which
//! Python code reads as it is, becomes Python values here.

mod allocator;
mod api;
mod cel;
mod json;
mod ledger;
mod signals;
mod slices;
mod topology;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    api::register(module)?;
    topology::register(module)?;
    cel::register(module)?;
    json::register(module)?;
    slices::register(module)?;
    allocator::register(module)?;
    ledger::register(module)?;
    signals::register(module)
}
