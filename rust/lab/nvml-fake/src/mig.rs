//! Multi-Instance GPU: the mode, GPU instances, compute instances, and MIG devices.
//!
//! The MIG state is in `nvml.mig.json` next to the state file. As with a driver, it is shared by all processes and
//! outlives them.

mod abi;
pub(crate) mod access;
mod compute_instance;
pub(crate) mod device;
mod geometry;
mod gpu_instance;
pub(crate) mod instances;
mod mode;
mod nodes;
mod profiles;
