//! A stand-in for `libnvidia-ml.so.1` that serves the GPUs of a simulated host: it answers from a state file beside
//! itself, with NVML's own error behaviour, and fails, hangs or loses GPUs where the file says so.
//!
//! It has no GPU of its own and never talks to a driver. Function names, numbers and structures are those of NVIDIA's
//! public API reference, as `nvidia-ml-py` calls them.

mod abi;
mod call;
mod events;
mod faults;
mod files;
mod handles;
mod health;
mod identity;
mod lifecycle;
mod limits;
mod location;
mod memory;
mod mig;
mod nvlink;
mod settings;
mod state;
mod system;
