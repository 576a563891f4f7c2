//! Memory: how much, how much of it is taken, and by which processes.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, Memory, MemoryV2, ProcessInfo, put, put_list, version};
use crate::call::{device, values};
use crate::handles::Device;
use crate::state::{Gpu, State};

/// The whole GPU, where an event or a process belongs to no MIG instance.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

fn used(state: &State, gpu: &Gpu) -> u64 {
    let room = gpu.memory_bytes.saturating_sub(gpu.reserved_bytes);
    state
        .processes(gpu)
        .map(|process| process.memory_bytes)
        .sum::<u64>()
        .min(room)
}

values! {
    // Version 1 counts what the driver reserves as used; version 2 tells it apart.
    nvmlDeviceGetMemoryInfo: Memory = |state, gpu| {
        let used = used(state, gpu) + gpu.reserved_bytes;
        Ok(Memory { total: gpu.memory_bytes, free: gpu.memory_bytes.saturating_sub(used), used })
    };
    nvmlDeviceGetBAR1MemoryInfo: Memory = |_, gpu| {
        const TAKEN: u64 = 1 << 20;
        Ok(Memory { total: gpu.bar1_bytes, free: gpu.bar1_bytes.saturating_sub(TAKEN), used: TAKEN })
    };
}

/// # Safety
/// As NVML's reference demands of `memory`, whose version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    handle: Device,
    memory: *mut MemoryV2,
) -> c_int {
    device("nvmlDeviceGetMemoryInfo_v2", handle, |state, gpu| {
        // SAFETY: null or one structure.
        let given = unsafe { memory.as_ref() }
            .ok_or(Code::INVALID_ARGUMENT)?
            .version;
        if given != version::<MemoryV2>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let used = used(state, gpu);
        let answer = MemoryV2 {
            version: given,
            total: gpu.memory_bytes,
            reserved: gpu.reserved_bytes,
            free: gpu.memory_bytes.saturating_sub(gpu.reserved_bytes + used),
            used,
        };
        // SAFETY: the caller gives one structure.
        unsafe { put(memory, answer) }
    })
}

/// # Safety
/// As NVML's reference demands of both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Device,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    device(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        handle,
        |state, gpu| {
            let processes: Vec<_> = state
                .processes(gpu)
                .map(|process| ProcessInfo {
                    pid: process.pid,
                    used_gpu_memory: process.memory_bytes,
                    gpu_instance_id: NO_INSTANCE,
                    compute_instance_id: NO_INSTANCE,
                })
                .collect();
            // SAFETY: the caller gives a count, and a list with that room or none.
            unsafe { put_list(count, list, &processes) }
        },
    )
}

/// # Safety
/// As NVML's reference demands of both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: Device,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    device(
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        handle,
        |_, _| {
            // SAFETY: the caller gives a count, and a list with that room or none.
            unsafe { put_list(count, list, &[]) }
        },
    )
}
