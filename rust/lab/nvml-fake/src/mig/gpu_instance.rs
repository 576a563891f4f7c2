//! GPU instances: creation, queries, destruction.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, write_value};
use crate::call::{device, gpu_or_instance};
use crate::handles::{self, Handle, Target};
use crate::mig::abi::{GpuInstanceInfo, Placement};
use crate::mig::access::require_config;
use crate::mig::geometry::{gpu_instance_id, is_free, remaining};
use crate::mig::instances::{self, GpuInstance, PartitionLayout};
use crate::mig::mode::require_physical;
use crate::mig::profiles::with_id;
use crate::state::{Gpu, MigProfile, State};

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    handle: Handle,
    profile: c_uint,
    count: *mut c_uint,
) -> c_int {
    device(
        "nvmlDeviceGetGpuInstanceRemainingCapacity",
        handle,
        |state, gpu| {
            require_config(state)?;
            let layout = enabled_layout(gpu)?;
            // SAFETY: the caller provides one unsigned int.
            unsafe { write_value(count, remaining(gpu, &layout, with_id(gpu, profile)?)) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstance(
    handle: Handle,
    profile: c_uint,
    instance: *mut Handle,
) -> c_int {
    device("nvmlDeviceCreateGpuInstance", handle, |state, gpu| {
        require_config(state)?;
        require_physical(gpu)?;
        enabled_layout(gpu)?;
        let created = create(state, gpu, with_id(gpu, profile)?, None)?;
        // SAFETY: the caller provides one handle.
        unsafe { write_value(instance, created) }
    })
}

/// # Safety
/// As NVML's reference requires for both pointers.
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
        |state, gpu| {
            require_config(state)?;
            require_physical(gpu)?;
            enabled_layout(gpu)?;
            // SAFETY: null or one structure.
            let place = unsafe { placement.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
            let profile = with_id(gpu, profile)?;
            if !profile.placements.contains(&(place.start, place.size)) {
                return Err(Code::INVALID_ARGUMENT);
            }
            let created = create(state, gpu, profile, Some((place.start, place.size)))?;
            // SAFETY: the caller provides one handle.
            unsafe { write_value(instance, created) }
        },
    )
}

/// Creates an instance at the placement, or else at the highest free one. INSUFFICIENT_RESOURCES if none is free.
fn create(
    state: &State,
    gpu: &Gpu,
    profile: &MigProfile,
    place: Option<(u32, u32)>,
) -> Result<Handle, Code> {
    let id = instances::change(gpu, |layout| {
        if !layout.mode {
            return Err(Code::NOT_SUPPORTED);
        }
        let free = |&(start, size): &(u32, u32)| is_free(layout, start, size);
        let place = match place {
            Some(place) => Some(place).filter(free),
            None => profile.placements.iter().copied().rev().find(free),
        };
        let (start, size) = place
            .filter(|_| remaining(gpu, layout, profile) > 0)
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = gpu_instance_id(gpu, state.id_seed(), start, size);
        layout.gpu_instances.push(GpuInstance {
            id,
            profile: profile.id,
            start,
            size,
            compute_instances: Vec::new(),
        });
        layout.gpu_instances.sort_by_key(|instance| instance.id);
        Ok(id)
    })?;
    Ok(handles::of_target(Target::GpuInstance(
        gpu.uuid.clone(),
        id,
    )))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceDestroy(handle: Handle) -> c_int {
    gpu_or_instance("nvmlGpuInstanceDestroy", handle, |state, gpu, target| {
        require_config(state)?;
        require_physical(gpu)?;
        let id = number(target)?;
        instances::change(gpu, |layout| {
            if !layout.gpu_instance(id)?.compute_instances.is_empty() {
                return Err(Code::IN_USE);
            }
            layout.gpu_instances.retain(|other| other.id != id);
            Ok(())
        })
    })
}

/// # Safety
/// As NVML's reference requires for both pointers: the list has the maximum number of instances of the profile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    handle: Handle,
    profile: c_uint,
    list: *mut Handle,
    count: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetGpuInstances", handle, |state, gpu| {
        require_config(state)?;
        let layout = enabled_layout(gpu)?;
        with_id(gpu, profile)?;
        let found = layout
            .gpu_instances
            .iter()
            .filter(|instance| instance.profile == profile)
            .map(|instance| Target::GpuInstance(gpu.uuid.clone(), instance.id));
        // SAFETY: the caller provides a list with that capacity, and one unsigned int.
        unsafe { write_all(list, count, found) }
    })
}

/// # Safety
/// As NVML's reference requires for `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(
    handle: Handle,
    id: c_uint,
    instance: *mut Handle,
) -> c_int {
    device("nvmlDeviceGetGpuInstanceById", handle, |state, gpu| {
        require_config(state)?;
        enabled_layout(gpu)?
            .gpu_instance(id)
            .map_err(|_| Code::NOT_FOUND)?;
        let found = handles::of_target(Target::GpuInstance(gpu.uuid.clone(), id));
        // SAFETY: the caller provides one handle.
        unsafe { write_value(instance, found) }
    })
}

/// # Safety
/// As NVML's reference requires for `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetInfo(
    handle: Handle,
    info: *mut GpuInstanceInfo,
) -> c_int {
    gpu_or_instance("nvmlGpuInstanceGetInfo", handle, |_, gpu, target| {
        let layout = enabled_layout(gpu)?;
        let instance = layout.gpu_instance(number(target)?)?;
        let result = GpuInstanceInfo {
            device: handles::of(&gpu.uuid),
            id: instance.id,
            profile_id: instance.profile,
            placement: Placement {
                start: instance.start,
                size: instance.size,
            },
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(info, result) }
    })
}

/// The instances of a GPU. NOT_SUPPORTED unless MIG mode is enabled.
pub(crate) fn enabled_layout(gpu: &Gpu) -> Result<PartitionLayout, Code> {
    let layout = instances::of(gpu)?;
    if layout.mode {
        Ok(layout)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// The number of the GPU instance of a handle.
pub(crate) fn number(target: &Target) -> Result<u32, Code> {
    match target {
        Target::GpuInstance(_, id) => Ok(*id),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Writes a list of instances. In this protocol `count` is only an output.
///
/// # Safety
/// `list` is null or valid for every one of `found`, `count` is null or valid.
pub(crate) unsafe fn write_all(
    list: *mut Handle,
    count: *mut c_uint,
    found: impl Iterator<Item = Target>,
) -> Result<(), Code> {
    if list.is_null() || count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut written = 0;
    for target in found {
        // SAFETY: the caller guarantees the capacity.
        unsafe { list.add(written).write(handles::of_target(target)) };
        written += 1;
    }
    // SAFETY: not null, and the caller guarantees it.
    unsafe { write_value(count, written as c_uint) }
}
