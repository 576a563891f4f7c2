//! Host information: versions and GPUs.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{self, Code, write_text, write_value};
use crate::call::system;
use crate::handles::{self, Handle, Target};
use crate::mig;
use crate::state::{Driver, State, address_parts};
use crate::{faults, latency};

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    abi::message(code).as_ptr()
}

fn driver(state: &State) -> Result<&Driver, Code> {
    state.driver.as_ref().ok_or(Code::DRIVER_NOT_LOADED)
}

/// # Safety
/// As NVML's reference requires for `version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    system("nvmlSystemGetDriverVersion", |state| {
        // SAFETY: the caller provides `length` bytes.
        unsafe { write_text(version, length, &driver(state)?.version) }
    })
}

/// # Safety
/// As NVML's reference requires for `version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> c_int {
    system("nvmlSystemGetNVMLVersion", |state| {
        // SAFETY: the caller provides `length` bytes.
        unsafe { write_text(version, length, &driver(state)?.nvml_version) }
    })
}

/// # Safety
/// As NVML's reference requires for `version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> c_int {
    system("nvmlSystemGetCudaDriverVersion", |state| {
        // SAFETY: the caller provides one int.
        unsafe { write_value(version, driver(state)?.cuda) }
    })
}

/// # Safety
/// As NVML's reference requires for `version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> c_int {
    // SAFETY: the same contract.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    system("nvmlDeviceGetCount_v2", |state| {
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(count, state.present().len() as c_uint) }
    })
}

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> c_int {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetCount_v2(count) }
}

/// # Safety
/// As NVML's reference requires for `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut Handle,
) -> c_int {
    system("nvmlDeviceGetHandleByIndex_v2", |state| {
        let gpus = state.present();
        let gpu = gpus.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        faults::before_lookup("nvmlDeviceGetHandleByIndex_v2", &gpu.uuid)?;
        latency::look_up(state, gpu);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(device, handles::of(&gpu.uuid)) }
    })
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut Handle,
) -> c_int {
    system("nvmlDeviceGetHandleByUUID", |state| {
        // SAFETY: the caller provides a C string.
        let uuid = unsafe { abi::text(uuid) }?;
        let target = match state.gpu(uuid) {
            Some(gpu) => Target::Gpu(gpu.uuid.clone()),
            None => mig::device::with_uuid(uuid)?.ok_or(Code::NOT_FOUND)?,
        };
        let gpu = state
            .gpu(target.gpu())
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        faults::before_lookup("nvmlDeviceGetHandleByUUID", &gpu.uuid)?;
        latency::look_up(state, gpu);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(device, handles::of_target(target)) }
    })
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    device: *mut Handle,
) -> c_int {
    system("nvmlDeviceGetHandleByPciBusId_v2", |state| {
        // SAFETY: the caller provides a C string.
        let wanted = address_parts(unsafe { abi::text(bus_id) }?).ok_or(Code::INVALID_ARGUMENT)?;
        let same = |address: &str| address_parts(address) == Some(wanted);
        let gpu = state
            .devices
            .iter()
            .find(|gpu| same(&gpu.pci.address))
            .ok_or(Code::NOT_FOUND)?;
        if !gpu.present {
            return Err(Code::GPU_IS_LOST);
        }
        faults::before_lookup("nvmlDeviceGetHandleByPciBusId_v2", &gpu.uuid)?;
        latency::look_up(state, gpu);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(device, handles::of(&gpu.uuid)) }
    })
}
