//! Fuzz targets: one for each kind of external input, with the properties that any bytes must satisfy.
//!
//! A target panics if a property is violated. `fuzz/` drives the targets with libFuzzer (docs/contributing/testing.md);
//! `tests/corpus.rs` replays the committed corpus. No part of the agent depends on this crate.

pub mod allocation;
mod api_server;
pub mod cel;
pub mod device;
pub mod inventory;
mod json;
pub mod ledger;
pub mod object;
pub mod oci_state;
pub mod pattern;
pub mod quantity;
mod sample;
pub mod slice_diff;
pub mod sysfs;
mod target;
pub mod uevent;

pub use target::Target;

/// All targets. Their names are those of the archives in `fuzz/corpus`.
pub const TARGETS: &[Target] = &[
    allocation::TARGET,
    cel::TARGET,
    device::TARGET,
    inventory::TARGET,
    ledger::TARGET,
    object::TARGET,
    oci_state::TARGET,
    pattern::TARGET,
    quantity::TARGET,
    slice_diff::TARGET,
    sysfs::TARGET,
    uevent::TARGET,
];
