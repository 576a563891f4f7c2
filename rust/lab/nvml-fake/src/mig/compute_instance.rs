//! Compute instances of a GPU instance: creation, queries, destruction.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, field, version, write_value};
use crate::call::gpu_or_instance;
use crate::handles::{self, Handle, Target};
use crate::mig::abi::{ComputeInstanceInfo, ComputeProfileInfo, ComputeProfileInfoV2, Placement};
use crate::mig::access::require_config;
use crate::mig::geometry::{
    compute_instance_ids, compute_name, compute_slices, compute_starts, is_compute_free,
    multiprocessors, uuid,
};
use crate::mig::gpu_instance::{enabled_layout, number, write_all};
use crate::mig::instances::{self, ComputeInstance, GpuInstance};
use crate::mig::profiles::with_id;
use crate::state::{Gpu, MigProfile, State};

const PROFILES: c_uint = 9;
const SHARED_ENGINES: c_uint = 0;
const MAX_COMPUTE_INSTANCES: u32 = 8;

/// A compute instance profile of a GPU instance: the profile of the GPU instance, and the slices.
fn find_compute_profile<'a>(
    gpu: &'a Gpu,
    target: &Target,
    profile: u32,
) -> Result<ComputeProfile<'a>, Code> {
    let instance = enabled_layout(gpu)?.gpu_instance(number(target)?)?.clone();
    if profile >= PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    let gpu_profile = with_id(gpu, instance.profile)?;
    let slices = compute_slices(gpu_profile, profile).ok_or(Code::NOT_SUPPORTED)?;
    Ok(ComputeProfile {
        gpu_profile,
        slices,
        instance,
    })
}

struct ComputeProfile<'a> {
    gpu_profile: &'a MigProfile,
    slices: u32,
    instance: GpuInstance,
}

impl ComputeProfile<'_> {
    fn info(&self, gpu: &Gpu, profile: u32) -> ComputeProfileInfo {
        ComputeProfileInfo {
            id: profile,
            slice_count: self.slices,
            instance_count: self.gpu_profile.slices / self.slices,
            multiprocessor_count: multiprocessors(gpu, self.gpu_profile, self.slices),
            shared_copy_engine_count: self.gpu_profile.copy_engines,
            shared_decoder_count: self.gpu_profile.decoders,
            shared_encoder_count: self.gpu_profile.encoders,
            shared_jpeg_count: self.gpu_profile.jpeg,
            shared_ofa_count: self.gpu_profile.ofa,
        }
    }

    fn free_start(&self) -> Option<u32> {
        compute_starts(self.gpu_profile, self.slices)
            .find(|&start| is_compute_free(&self.instance, start, self.slices))
    }
}

/// # Safety
/// As NVML's reference requires for `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    handle: Handle,
    profile: c_uint,
    engines: c_uint,
    info: *mut ComputeProfileInfo,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        handle,
        |_, gpu, target| {
            if engines != SHARED_ENGINES {
                return Err(Code::INVALID_ARGUMENT);
            }
            let result = find_compute_profile(gpu, target, profile)?.info(gpu, profile);
            // SAFETY: the caller provides one structure.
            unsafe { write_value(info, result) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `info`. Its version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    handle: Handle,
    profile: c_uint,
    engines: c_uint,
    info: *mut ComputeProfileInfoV2,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        handle,
        |_, gpu, target| {
            // SAFETY: null or one structure.
            let requested = unsafe { info.as_ref() }
                .ok_or(Code::INVALID_ARGUMENT)?
                .version;
            if requested != version::<ComputeProfileInfoV2>(2) {
                return Err(Code::ARGUMENT_VERSION_MISMATCH);
            }
            if engines != SHARED_ENGINES {
                return Err(Code::INVALID_ARGUMENT);
            }
            let compute_profile = find_compute_profile(gpu, target, profile)?;
            let result = ComputeProfileInfoV2 {
                version: requested,
                info: compute_profile.info(gpu, profile),
                name: field(&compute_name(
                    compute_profile.gpu_profile,
                    compute_profile.slices,
                )),
            };
            // SAFETY: the caller provides one structure.
            unsafe { write_value(info, result) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    handle: Handle,
    profile: c_uint,
    count: *mut c_uint,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
        handle,
        |state, gpu, target| {
            require_config(state)?;
            let mut compute_profile = find_compute_profile(gpu, target, profile)?;
            let mut remaining = 0;
            while let Some(start) = compute_profile.free_start() {
                compute_profile
                    .instance
                    .compute_instances
                    .push(new_instance(
                        remaining,
                        profile,
                        start,
                        compute_profile.slices,
                    ));
                remaining += 1;
            }
            // SAFETY: the caller provides one unsigned int.
            unsafe { write_value(count, remaining) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    handle: Handle,
    profile: c_uint,
    instance: *mut Handle,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceCreateComputeInstance",
        handle,
        |state, gpu, target| {
            require_config(state)?;
            let created = create(state, gpu, target, profile)?;
            // SAFETY: the caller provides one handle.
            unsafe { write_value(instance, created) }
        },
    )
}

fn create(state: &State, gpu: &Gpu, target: &Target, profile: u32) -> Result<Handle, Code> {
    find_compute_profile(gpu, target, profile)?;
    let gpu_instance = number(target)?;
    let id = instances::change(gpu, |layout| {
        let number_created = layout.created;
        let instance = layout.gpu_instance_mut(gpu_instance)?;
        let gpu_profile = with_id(gpu, instance.profile)?;
        let slices = compute_slices(gpu_profile, profile).ok_or(Code::NOT_SUPPORTED)?;
        let start = compute_starts(gpu_profile, slices)
            .find(|&start| is_compute_free(instance, start, slices))
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = compute_instance_ids(gpu, state.id_seed(), MAX_COMPUTE_INSTANCES)
            .find(|&id| instance.compute_instance(id).is_err())
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        instance.compute_instances.push(ComputeInstance {
            uuid: uuid(&gpu.uuid, gpu_instance, id, number_created),
            ..new_instance(id, profile, start, slices)
        });
        instance.compute_instances.sort_by_key(|other| other.id);
        layout.created += 1;
        Ok(id)
    })?;
    Ok(handles::of_target(Target::ComputeInstance(
        gpu.uuid.clone(),
        gpu_instance,
        id,
    )))
}

fn new_instance(id: u32, profile: u32, start: u32, size: u32) -> ComputeInstance {
    ComputeInstance {
        id,
        profile,
        start,
        size,
        uuid: String::new(),
    }
}

/// IN_USE while a process computes on it.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceDestroy(handle: Handle) -> c_int {
    gpu_or_instance(
        "nvmlComputeInstanceDestroy",
        handle,
        |state, gpu, target| {
            require_config(state)?;
            let (gpu_instance, id) = numbers(target)?;
            instances::change(gpu, |layout| {
                let instance = layout.gpu_instance_mut(gpu_instance)?;
                instance.compute_instance(id)?;
                let used = state.processes(gpu).any(|process| {
                    (process.gpu_instance, process.compute_instance) == (gpu_instance, id)
                });
                if used {
                    return Err(Code::IN_USE);
                }
                instance.compute_instances.retain(|other| other.id != id);
                Ok(())
            })
        },
    )
}

/// # Safety
/// As NVML's reference requires for both pointers: the list has the maximum number of instances of the profile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    handle: Handle,
    profile: c_uint,
    list: *mut Handle,
    count: *mut c_uint,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceGetComputeInstances",
        handle,
        |state, gpu, target| {
            require_config(state)?;
            let compute_profile = find_compute_profile(gpu, target, profile)?;
            let found = compute_profile
                .instance
                .compute_instances
                .iter()
                .filter(|compute| compute.profile == profile)
                .map(|compute| {
                    Target::ComputeInstance(
                        gpu.uuid.clone(),
                        compute_profile.instance.id,
                        compute.id,
                    )
                });
            // SAFETY: the caller provides a list with that capacity, and one unsigned int.
            unsafe { write_all(list, count, found) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `instance`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    handle: Handle,
    id: c_uint,
    instance: *mut Handle,
) -> c_int {
    gpu_or_instance(
        "nvmlGpuInstanceGetComputeInstanceById",
        handle,
        |state, gpu, target| {
            require_config(state)?;
            let gpu_instance = number(target)?;
            enabled_layout(gpu)?
                .gpu_instance(gpu_instance)?
                .compute_instance(id)
                .map_err(|_| Code::NOT_FOUND)?;
            let found = Target::ComputeInstance(gpu.uuid.clone(), gpu_instance, id);
            // SAFETY: the caller provides one handle.
            unsafe { write_value(instance, handles::of_target(found)) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlComputeInstanceGetInfo_v2(
    handle: Handle,
    info: *mut ComputeInstanceInfo,
) -> c_int {
    gpu_or_instance("nvmlComputeInstanceGetInfo_v2", handle, |_, gpu, target| {
        let (gpu_instance, id) = numbers(target)?;
        let layout = enabled_layout(gpu)?;
        let compute = layout.gpu_instance(gpu_instance)?.compute_instance(id)?;
        let owner = gpu.uuid.clone();
        let result = ComputeInstanceInfo {
            device: handles::of_target(Target::MigDevice(owner.clone(), gpu_instance, id)),
            gpu_instance: handles::of_target(Target::GpuInstance(owner, gpu_instance)),
            id,
            profile_id: compute.profile,
            placement: Placement {
                start: compute.start,
                size: compute.size,
            },
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(info, result) }
    })
}

/// The numbers of the compute instance of a handle.
fn numbers(target: &Target) -> Result<(u32, u32), Code> {
    match target {
        Target::ComputeInstance(_, instance, id) => Ok((*instance, *id)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}
