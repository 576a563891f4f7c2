//! The border between the pure crates and Python: one file per crate, no logic of its own.
//!
//! Structured values cross as JSON bytes, which both sides decode into their own types.

mod allocator;
mod api;
mod cel;
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
    slices::register(module)?;
    allocator::register(module)?;
    ledger::register(module)?;
    signals::register(module)
}
