//! A fake `libnvidia-ml.so.1` for the GPUs of a simulated host. It reads a state file next to the library, returns the
//! same errors as NVML, and injects failures, hangs and lost GPUs from the file.
//!
//! The library uses no GPU and no driver. Function names, constants and structures come from NVIDIA's public API
//! reference, as `nvidia-ml-py` calls them.

mod abi;
mod call;
mod events;
mod faults;
mod files;
mod gpm;
mod handles;
mod health;
mod identity;
mod latency;
mod lifecycle;
mod load;
mod locality;
mod memory;
mod memory_limits;
mod mig;
mod nvlink;
mod process_utilization;
mod settings;
mod state;
mod system;
