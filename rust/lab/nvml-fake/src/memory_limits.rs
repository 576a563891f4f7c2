//! Memory limits of control groups. Hosts with a driver that lacks these functions get a library without them.

use std::ffi::{c_char, c_int};
use std::path::Path;

use crate::abi::{self, Code};
use crate::call::device;
use crate::handles::Handle;
use crate::state::{self, Gpu, MemoryLimit, State};

/// NVML_DEVICE_MEMORY_LIMIT_MAX.
const UNLIMITED: u64 = u64::MAX;

/// nvmlSetMemoryLimits_v1_t; bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SetMemoryLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
}

/// nvmlGetMemoryLimits_v1_t; bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct GetMemoryLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// A soft limit of 0 with a hard limit of NVML_DEVICE_MEMORY_LIMIT_MAX removes the limit.
///
/// # Safety
/// As NVML's reference requires for `limits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(
    handle: Handle,
    limits: *const SetMemoryLimits,
) -> c_int {
    device("nvmlDeviceSetMemoryLimits_v1", handle, |_, gpu| {
        // SAFETY: null or one structure.
        let request = unsafe { limits.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: null or a C string.
        let group = unsafe { abi::text(request.name_space) }?;
        if group.is_empty() || request.soft > request.hard {
            return Err(Code::INVALID_ARGUMENT);
        }
        let cleared = (request.soft, request.hard) == (0, UNLIMITED);
        let limit = MemoryLimit {
            soft: request.soft,
            hard: request.hard,
            folder: Path::new(group).is_dir(),
        };
        let limit = serde_json::to_value(limit).map_err(|_| Code::UNKNOWN)?;
        state::update(|document| {
            let groups = &mut document["memory_limits"][&gpu.uuid];
            if !cleared {
                groups[group] = limit;
            } else if let Some(groups) = groups.as_object_mut() {
                groups.remove(group);
            }
            true
        })
    })
}

/// # Safety
/// As NVML's reference requires for `limits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(
    handle: Handle,
    limits: *mut GetMemoryLimits,
) -> c_int {
    device("nvmlDeviceGetMemoryLimits_v1", handle, |state, gpu| {
        // SAFETY: null or one structure.
        let reply = unsafe { limits.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: null or a C string.
        let group = unsafe { abi::text(reply.name_space) }?;
        (reply.soft, reply.hard) = effective_limit(state, gpu, group)
            .map_or((0, UNLIMITED), |limit| (limit.soft, limit.hard));
        reply.used = state
            .processes(gpu)
            .filter(|process| process.cgroup.as_deref() == Some(group))
            .map(|process| process.memory_bytes)
            .sum();
        Ok(())
    })
}

/// The limit of a control group. A driver drops the limit when the group is removed, even if a new group gets its name.
fn effective_limit<'a>(state: &'a State, gpu: &Gpu, group: &str) -> Option<&'a MemoryLimit> {
    let limit = state.memory_limits.get(&gpu.uuid)?.get(group)?;
    (!limit.folder || Path::new(group).is_dir()).then_some(limit)
}
