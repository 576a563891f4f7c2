//! Multi-Instance GPU: the mode, GPU instances, compute instances, and the devices that CUDA sees of them.
//!
//! What exists is kept in `nvml.mig.json` beside the state file, as a driver keeps it: it outlives the process that made
//! it, and every process sees it.

mod abi;
mod compute_instance;
pub(crate) mod device;
mod geometry;
mod gpu_instance;
mod instances;
mod mode;
mod nodes;
mod profiles;
