//! Settings of a GPU. They are in the state file, because a driver shares them between processes.

use std::ffi::{c_int, c_uint};

use crate::abi::Code;
use crate::call::{device, values};
use crate::handles::Handle;
use crate::state;

const MODES: c_uint = 4;
const EXCLUSIVE_THREAD: c_uint = 1;

values! {
    nvmlDeviceGetPersistenceMode: c_uint = |state, gpu| Ok(u32::from(state.condition(gpu).persistence_mode));
    nvmlDeviceGetComputeMode: c_uint = |state, gpu| Ok(state.condition(gpu).compute_mode);
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetPersistenceMode(handle: Handle, mode: c_uint) -> c_int {
    device("nvmlDeviceSetPersistenceMode", handle, |_, gpu| {
        if mode > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        set(&gpu.uuid, "persistence_mode", (mode == 1).into())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetComputeMode(handle: Handle, mode: c_uint) -> c_int {
    device("nvmlDeviceSetComputeMode", handle, |_, gpu| {
        match mode {
            // Removed in CUDA 8.
            EXCLUSIVE_THREAD => Err(Code::NOT_SUPPORTED),
            MODES.. => Err(Code::INVALID_ARGUMENT),
            _ => set(&gpu.uuid, "compute_mode", mode.into()),
        }
    })
}

fn set(uuid: &str, setting: &str, value: serde_json::Value) -> Result<(), Code> {
    state::update(|document| {
        document["conditions"][uuid][setting] = value;
        true
    })
}
