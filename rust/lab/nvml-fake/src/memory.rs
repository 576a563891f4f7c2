//! Memory: total, used, and by which processes.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, Memory, MemoryV2, ProcessInfo, version, write_list, write_value};
use crate::call::{device, gpu_or_instance, values};
use crate::handles::{Handle, Target};
use crate::load;
use crate::mig;
use crate::state::{Gpu, Process, State};

/// Memory use of a GPU or a MIG device, in bytes.
struct MemoryUse {
    total: u64,
    reserved: u64,
    used: u64,
}

/// A GPU without dedicated memory (GB10) supports no version of the call (kubernetes-sigs/dra-driver-nvidia-gpu#1073).
fn memory_use(state: &State, gpu: &Gpu, target: &Target) -> Result<MemoryUse, Code> {
    let (total, reserved, instance) = match target {
        Target::Gpu(_) => {
            // k8s-device-plugin#1683: "error getting parent memory info: Insufficient Permissions".
            if !mig::instances::of(gpu)?.gpu_instances.is_empty() {
                mig::access::require_monitor(state)?;
            }
            if gpu.memory_bytes == 0 {
                return Err(Code::NOT_SUPPORTED);
            }
            (gpu.memory_bytes, gpu.reserved_bytes, None)
        }
        _ => {
            let found = mig::device::find(gpu, target)?;
            (found.profile.memory_mib << 20, 0, Some(found.instance.id))
        }
    };
    let used = state
        .processes(gpu)
        .filter(|process| instance.is_none_or(|id| process.gpu_instance == id))
        .map(|process| process.memory_bytes)
        .sum::<u64>()
        + load::memory_bytes(&state.loads, &gpu.uuid, instance);
    let used = used.min(total - reserved);
    Ok(MemoryUse {
        total,
        reserved,
        used,
    })
}

values! {
    nvmlDeviceGetBAR1MemoryInfo: Memory = |_, gpu| {
        const USED_BYTES: u64 = 1 << 20;
        if gpu.bar1_bytes == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(Memory { total: gpu.bar1_bytes, free: gpu.bar1_bytes.saturating_sub(USED_BYTES), used: USED_BYTES })
    };
}

/// # Safety
/// As NVML's reference requires for `memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: Handle, memory: *mut Memory) -> c_int {
    gpu_or_instance("nvmlDeviceGetMemoryInfo", handle, |state, gpu, target| {
        // Version 1 counts reserved memory as used; version 2 reports it separately.
        let memory_use = memory_use(state, gpu, target)?;
        let used = memory_use.used + memory_use.reserved;
        let result = Memory {
            total: memory_use.total,
            free: memory_use.total - used,
            used,
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(memory, result) }
    })
}

/// # Safety
/// As NVML's reference requires for `memory`. Its version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    handle: Handle,
    memory: *mut MemoryV2,
) -> c_int {
    gpu_or_instance(
        "nvmlDeviceGetMemoryInfo_v2",
        handle,
        |state, gpu, target| {
            // SAFETY: null or one structure.
            let requested = unsafe { memory.as_ref() }
                .ok_or(Code::INVALID_ARGUMENT)?
                .version;
            if requested != version::<MemoryV2>(2) {
                return Err(Code::ARGUMENT_VERSION_MISMATCH);
            }
            let memory_use = memory_use(state, gpu, target)?;
            let result = MemoryV2 {
                version: requested,
                total: memory_use.total,
                reserved: memory_use.reserved,
                free: memory_use.total - memory_use.reserved - memory_use.used,
                used: memory_use.used,
            };
            // SAFETY: the caller provides one structure.
            unsafe { write_value(memory, result) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    gpu_or_instance(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        handle,
        |state, gpu, target| {
            let here = |process: &&Process| match target {
                Target::MigDevice(_, instance, compute) => {
                    (process.gpu_instance, process.compute_instance) == (*instance, *compute)
                }
                _ => true,
            };
            if *target != Target::Gpu(gpu.uuid.clone()) {
                mig::device::find(gpu, target)?;
            }
            let processes: Vec<_> = state
                .processes(gpu)
                .filter(here)
                .map(|process| ProcessInfo {
                    pid: process.pid,
                    used_gpu_memory: process.memory_bytes,
                    gpu_instance_id: process.gpu_instance,
                    compute_instance_id: process.compute_instance,
                })
                .collect();
            // SAFETY: the caller provides a count, and a list with that capacity, or null.
            unsafe { write_list(count, list, &processes) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    device(
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        handle,
        |_, _| {
            // SAFETY: the caller provides a count, and a list with that capacity, or null.
            unsafe { write_list(count, list, &[]) }
        },
    )
}
