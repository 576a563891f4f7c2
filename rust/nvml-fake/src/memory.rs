//! Memory: how much, how much of it is taken, and by which processes.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, Memory, MemoryV2, ProcessInfo, put, put_list, version};
use crate::call::{device, part, values};
use crate::handles::{Handle, Target};
use crate::mig;
use crate::state::{Gpu, Process, State};

/// What of a GPU or of a MIG device is taken, in bytes.
struct Room {
    total: u64,
    reserved: u64,
    used: u64,
}

fn room(state: &State, gpu: &Gpu, target: &Target) -> Result<Room, Code> {
    let (total, reserved, instance) = match target {
        Target::Gpu(_) => (gpu.memory_bytes, gpu.reserved_bytes, None),
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
        .min(total - reserved);
    Ok(Room {
        total,
        reserved,
        used,
    })
}

values! {
    nvmlDeviceGetBAR1MemoryInfo: Memory = |_, gpu| {
        const TAKEN: u64 = 1 << 20;
        Ok(Memory { total: gpu.bar1_bytes, free: gpu.bar1_bytes.saturating_sub(TAKEN), used: TAKEN })
    };
}

/// # Safety
/// As NVML's reference demands of `memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: Handle, memory: *mut Memory) -> c_int {
    part("nvmlDeviceGetMemoryInfo", handle, |state, gpu, target| {
        // Version 1 counts what the driver reserves as used; version 2 tells it apart.
        let room = room(state, gpu, target)?;
        let used = room.used + room.reserved;
        let answer = Memory {
            total: room.total,
            free: room.total - used,
            used,
        };
        // SAFETY: the caller gives one structure.
        unsafe { put(memory, answer) }
    })
}

/// # Safety
/// As NVML's reference demands of `memory`, whose version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    handle: Handle,
    memory: *mut MemoryV2,
) -> c_int {
    part(
        "nvmlDeviceGetMemoryInfo_v2",
        handle,
        |state, gpu, target| {
            // SAFETY: null or one structure.
            let given = unsafe { memory.as_ref() }
                .ok_or(Code::INVALID_ARGUMENT)?
                .version;
            if given != version::<MemoryV2>(2) {
                return Err(Code::ARGUMENT_VERSION_MISMATCH);
            }
            let room = room(state, gpu, target)?;
            let answer = MemoryV2 {
                version: given,
                total: room.total,
                reserved: room.reserved,
                free: room.total - room.reserved - room.used,
                used: room.used,
            };
            // SAFETY: the caller gives one structure.
            unsafe { put(memory, answer) }
        },
    )
}

/// # Safety
/// As NVML's reference demands of both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    part(
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
            // SAFETY: the caller gives a count, and a list with that room or none.
            unsafe { put_list(count, list, &processes) }
        },
    )
}

/// # Safety
/// As NVML's reference demands of both pointers.
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
            // SAFETY: the caller gives a count, and a list with that room or none.
            unsafe { put_list(count, list, &[]) }
        },
    )
}
