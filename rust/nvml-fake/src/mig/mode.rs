//! Whether a GPU can be divided: the mode, and what stands in the way of changing it.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, SUCCESS, put};
use crate::call::{device, values};
use crate::handles::Handle;
use crate::mig::instances;
use crate::mig::profiles::capable;
use crate::state::{Gpu, State};

const HOPPER: u32 = 9;

values! {
    // MIG devices that can exist: none while the mode is off.
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |_, gpu| {
        let most = gpu.mig.iter().map(|profile| profile.slices).max().unwrap_or(0);
        Ok(if instances::of(gpu)?.mode { most } else { 0 })
    };
}

/// # Safety
/// As NVML's reference demands of both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    handle: Handle,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetMigMode", handle, |_, gpu| {
        capable(gpu)?;
        let division = instances::of(gpu)?;
        // SAFETY: the caller gives two unsigned ints.
        unsafe {
            put(now, division.mode.into())?;
            put(pending, division.pending.into())
        }
    })
}

/// The mode is always noted; `status` says whether it is in force already.
///
/// # Safety
/// As NVML's reference demands of `status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(
    handle: Handle,
    mode: c_uint,
    status: *mut c_int,
) -> c_int {
    device("nvmlDeviceSetMigMode", handle, |state, gpu| {
        capable(gpu)?;
        if mode > 1 || status.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let outcome = set(state, gpu, mode == 1)?;
        // SAFETY: the caller gives one enum.
        unsafe { put(status, outcome) }
    })
}

/// A GPU before Hopper takes the mode at its next reset; one since then as soon as nobody uses it.
fn set(state: &State, gpu: &Gpu, on: bool) -> Result<c_int, Code> {
    instances::change(gpu, |division| {
        division.pending = on;
        if division.mode == on {
            return Ok(SUCCESS);
        }
        if state.processes(gpu).next().is_some() || !division.gpu_instances.is_empty() {
            return Ok(Code::IN_USE.0);
        }
        if gpu.architecture < HOPPER {
            return Ok(Code::RESET_REQUIRED.0);
        }
        division.mode = on;
        Ok(SUCCESS)
    })
}
