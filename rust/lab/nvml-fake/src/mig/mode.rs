//! The MIG mode, and the conditions for a change of it.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, SUCCESS, write_value};
use crate::call::{device, values};
use crate::handles::Handle;
use crate::mig::access::require_admin;
use crate::mig::instances;
use crate::mig::profiles::require_mig;
use crate::state::{Gpu, State};

const HOPPER: u32 = 9;

const VGPU: u32 = 2;

/// NOT_SUPPORTED in a vGPU guest, for changes of the mode and of GPU instances (nvml.h; open-gpu-kernel-modules,
/// kernel_mig_manager.c: IS_VIRTUAL).
pub(crate) fn require_physical(gpu: &Gpu) -> Result<(), Code> {
    if gpu.virtualization == VGPU {
        Err(Code::NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

values! {
    nvmlDeviceGetVirtualizationMode: c_uint = |_, gpu| Ok(gpu.virtualization);
    // The maximum number of MIG devices: 0 while the mode is off.
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |_, gpu| {
        let max_devices = gpu.mig.iter().map(|profile| profile.slices).max().unwrap_or(0);
        Ok(if instances::of(gpu)?.mode { max_devices } else { 0 })
    };
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    handle: Handle,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetMigMode", handle, |_, gpu| {
        require_mig(gpu)?;
        let layout = instances::of(gpu)?;
        // SAFETY: the caller provides two unsigned ints.
        unsafe {
            write_value(now, layout.mode.into())?;
            write_value(pending, layout.pending.into())
        }
    })
}

/// The pending mode is always set; `status` reports whether it is already active.
///
/// # Safety
/// As NVML's reference requires for `status`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(
    handle: Handle,
    mode: c_uint,
    status: *mut c_int,
) -> c_int {
    device("nvmlDeviceSetMigMode", handle, |state, gpu| {
        require_mig(gpu)?;
        require_admin(state)?;
        require_physical(gpu)?;
        if mode > 1 || status.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let outcome = set(state, gpu, mode == 1)?;
        // SAFETY: the caller provides one enum.
        unsafe { write_value(status, outcome) }
    })
}

/// GPUs before Hopper apply the mode at the next reset, later ones as soon as no process uses the GPU.
fn set(state: &State, gpu: &Gpu, on: bool) -> Result<c_int, Code> {
    instances::change(gpu, |layout| {
        layout.pending = on;
        if layout.mode == on {
            return Ok(SUCCESS);
        }
        if state.processes(gpu).next().is_some() || !layout.gpu_instances.is_empty() {
            return Ok(Code::IN_USE.0);
        }
        if gpu.architecture < HOPPER {
            return Ok(Code::RESET_REQUIRED.0);
        }
        layout.mode = on;
        Ok(SUCCESS)
    })
}
