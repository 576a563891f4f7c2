//! GPU instances: made, looked at and destroyed.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, put};
use crate::call::{device, part};
use crate::handles::{self, Handle, Target};
use crate::mig::abi::{GpuInstanceInfo, Placement};
use crate::mig::geometry::{gpu_instance_id, is_free, remaining};
use crate::mig::instances::{self, Division, GpuInstance};
use crate::mig::profiles::with_id;
use crate::state::{Gpu, MigProfile};

/// # Safety
/// As NVML's reference demands of `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    handle: Handle,
    profile: c_uint,
    count: *mut c_uint,
) -> c_int {
    device(
        "nvmlDeviceGetGpuInstanceRemainingCapacity",
        handle,
        |_, gpu| {
            let division = divided(gpu)?;
            // SAFETY: the caller gives one unsigned int.
            unsafe { put(count, remaining(&division, with_id(gpu, profile)?)) }
        },
    )
}

/// # Safety
/// As NVML's reference demands of `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstance(
    handle: Handle,
    profile: c_uint,
    instance: *mut Handle,
) -> c_int {
    device("nvmlDeviceCreateGpuInstance", handle, |_, gpu| {
        divided(gpu)?;
        let made = create(gpu, with_id(gpu, profile)?, None)?;
        // SAFETY: the caller gives one handle.
        unsafe { put(instance, made) }
    })
}

/// # Safety
/// As NVML's reference demands of both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    handle: Handle,
    profile: c_uint,
    placement: *const Placement,
    instance: *mut Handle,
) -> c_int {
    device(
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        handle,
        |_, gpu| {
            divided(gpu)?;
            // SAFETY: null or one structure.
            let place = unsafe { placement.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
            let profile = with_id(gpu, profile)?;
            if !profile.placements.contains(&(place.start, place.size)) {
                return Err(Code::INVALID_ARGUMENT);
            }
            let made = create(gpu, profile, Some((place.start, place.size)))?;
            // SAFETY: the caller gives one handle.
            unsafe { put(instance, made) }
        },
    )
}

/// Without a place the highest free one is taken. INSUFFICIENT_RESOURCES where there is none, or where it is taken.
fn create(gpu: &Gpu, profile: &MigProfile, place: Option<(u32, u32)>) -> Result<Handle, Code> {
    let id = instances::change(gpu, |division| {
        if !division.mode {
            return Err(Code::NOT_SUPPORTED);
        }
        let free = |&(start, size): &(u32, u32)| is_free(division, start, size);
        let place = match place {
            Some(place) => Some(place).filter(free),
            None => profile.placements.iter().copied().rev().find(free),
        };
        let (start, size) = place
            .filter(|_| remaining(division, profile) > 0)
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = gpu_instance_id(start, size);
        division.gpu_instances.push(GpuInstance {
            id,
            profile: profile.id,
            start,
            size,
            compute_instances: Vec::new(),
        });
        division.gpu_instances.sort_by_key(|instance| instance.id);
        Ok(id)
    })?;
    Ok(handles::of_target(Target::GpuInstance(
        gpu.uuid.clone(),
        id,
    )))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceDestroy(handle: Handle) -> c_int {
    part("nvmlGpuInstanceDestroy", handle, |_, gpu, target| {
        let id = number(target)?;
        instances::change(gpu, |division| {
            if !division.gpu_instance(id)?.compute_instances.is_empty() {
                return Err(Code::IN_USE);
            }
            division.gpu_instances.retain(|other| other.id != id);
            Ok(())
        })
    })
}

/// # Safety
/// As NVML's reference demands of both pointers: there is room for as many as the profile can have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    handle: Handle,
    profile: c_uint,
    list: *mut Handle,
    count: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetGpuInstances", handle, |_, gpu| {
        let division = divided(gpu)?;
        with_id(gpu, profile)?;
        let found = division
            .gpu_instances
            .iter()
            .filter(|instance| instance.profile == profile)
            .map(|instance| Target::GpuInstance(gpu.uuid.clone(), instance.id));
        // SAFETY: the caller gives a list with that room, and one unsigned int.
        unsafe { put_all(list, count, found) }
    })
}

/// # Safety
/// As NVML's reference demands of `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(
    handle: Handle,
    id: c_uint,
    instance: *mut Handle,
) -> c_int {
    device("nvmlDeviceGetGpuInstanceById", handle, |_, gpu| {
        divided(gpu)?
            .gpu_instance(id)
            .map_err(|_| Code::NOT_FOUND)?;
        let found = handles::of_target(Target::GpuInstance(gpu.uuid.clone(), id));
        // SAFETY: the caller gives one handle.
        unsafe { put(instance, found) }
    })
}

/// # Safety
/// As NVML's reference demands of `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetInfo(
    handle: Handle,
    info: *mut GpuInstanceInfo,
) -> c_int {
    part("nvmlGpuInstanceGetInfo", handle, |_, gpu, target| {
        let division = divided(gpu)?;
        let instance = division.gpu_instance(number(target)?)?;
        let answer = GpuInstanceInfo {
            device: handles::of(&gpu.uuid),
            id: instance.id,
            profile_id: instance.profile,
            placement: Placement {
                start: instance.start,
                size: instance.size,
            },
        };
        // SAFETY: the caller gives one structure.
        unsafe { put(info, answer) }
    })
}

/// What a GPU is divided into; NOT_SUPPORTED while it cannot be.
pub(crate) fn divided(gpu: &Gpu) -> Result<Division, Code> {
    let division = instances::of(gpu)?;
    if division.mode {
        Ok(division)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// The number of the GPU instance that a handle means.
pub(crate) fn number(target: &Target) -> Result<u32, Code> {
    match target {
        Target::GpuInstance(_, id) => Ok(*id),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// The protocol of lists of instances: the count is only told, never asked for.
///
/// # Safety
/// `list` is null or valid for every one of `found`, `count` is null or valid.
pub(crate) unsafe fn put_all(
    list: *mut Handle,
    count: *mut c_uint,
    found: impl Iterator<Item = Target>,
) -> Result<(), Code> {
    if list.is_null() || count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut told = 0;
    for target in found {
        // SAFETY: the caller vouches for the room.
        unsafe { list.add(told).write(handles::of_target(target)) };
        told += 1;
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { put(count, told as c_uint) }
}
