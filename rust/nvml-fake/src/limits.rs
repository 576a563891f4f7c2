//! What control groups may have of a GPU's memory. Hosts with a driver that does not have the calls get a library without.

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
pub(crate) struct Wanted {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
}

/// nvmlGetMemoryLimits_v1_t; bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Told {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

/// A soft limit of 0 with a hard one of NVML_DEVICE_MEMORY_LIMIT_MAX takes the limit away.
///
/// # Safety
/// As NVML's reference demands of `limits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(
    handle: Handle,
    limits: *const Wanted,
) -> c_int {
    device("nvmlDeviceSetMemoryLimits_v1", handle, |_, gpu| {
        // SAFETY: null or one structure.
        let wanted = unsafe { limits.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: null or a C string.
        let group = unsafe { abi::text(wanted.name_space) }?;
        if group.is_empty() || wanted.soft > wanted.hard {
            return Err(Code::INVALID_ARGUMENT);
        }
        let cleared = (wanted.soft, wanted.hard) == (0, UNLIMITED);
        let limit = MemoryLimit {
            soft: wanted.soft,
            hard: wanted.hard,
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
/// As NVML's reference demands of `limits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(handle: Handle, limits: *mut Told) -> c_int {
    device("nvmlDeviceGetMemoryLimits_v1", handle, |state, gpu| {
        // SAFETY: null or one structure.
        let told = unsafe { limits.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        // SAFETY: null or a C string.
        let group = unsafe { abi::text(told.name_space) }?;
        (told.soft, told.hard) =
            in_force(state, gpu, group).map_or((0, UNLIMITED), |limit| (limit.soft, limit.hard));
        told.used = state
            .processes(gpu)
            .filter(|process| process.cgroup.as_deref() == Some(group))
            .map(|process| process.memory_bytes)
            .sum();
        Ok(())
    })
}

/// A driver forgets the limit of a control group that is removed, also where another one gets its name.
fn in_force<'a>(state: &'a State, gpu: &Gpu, group: &str) -> Option<&'a MemoryLimit> {
    let limit = state.memory_limits.get(&gpu.uuid)?.get(group)?;
    (!limit.folder || Path::new(group).is_dir()).then_some(limit)
}
