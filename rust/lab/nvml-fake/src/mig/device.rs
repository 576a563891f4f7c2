//! MIG devices: compute instances as CUDA devices.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, write_value};
use crate::call::{device, gpu_or_instance};
use crate::handles::{self, Handle, Target};
use crate::mig::abi::Attributes;
use crate::mig::geometry::{compute_name, multiprocessors};
use crate::mig::instances::{self, ComputeInstance, GpuInstance};
use crate::mig::profiles::{require_mig, with_id};
use crate::state::{Gpu, MigProfile};

/// A MIG device.
#[derive(Debug)]
pub(crate) struct MigDevice<'a> {
    pub(crate) profile: &'a MigProfile,
    pub(crate) instance: GpuInstance,
    pub(crate) compute: ComputeInstance,
}

impl MigDevice<'_> {
    /// "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
    pub(crate) fn name(&self, gpu: &Gpu) -> String {
        format!(
            "{} {}",
            gpu.name,
            compute_name(self.profile, self.compute.size)
        )
    }
}

/// The MIG device of a handle. INVALID_ARGUMENT if it was destroyed, or the handle is of another kind.
pub(crate) fn find<'a>(gpu: &'a Gpu, target: &Target) -> Result<MigDevice<'a>, Code> {
    let Target::MigDevice(_, instance, compute) = target else {
        return Err(Code::INVALID_ARGUMENT);
    };
    let layout = instances::of(gpu)?;
    let instance = layout.gpu_instance(*instance)?;
    Ok(MigDevice {
        profile: with_id(gpu, instance.profile)?,
        instance: instance.clone(),
        compute: instance.compute_instance(*compute)?.clone(),
    })
}

/// The MIG device with the UUID.
pub(crate) fn with_uuid(uuid: &str) -> Result<Option<Target>, Code> {
    for (gpu, layout) in &*instances::all()? {
        for instance in &layout.gpu_instances {
            for compute in &instance.compute_instances {
                if compute.uuid == uuid {
                    let target = Target::MigDevice(gpu.clone(), instance.id, compute.id);
                    return Ok(Some(target));
                }
            }
        }
    }
    Ok(None)
}

/// Indexes have no gaps, so the destruction of a device changes the indexes of later devices.
///
/// # Safety
/// As NVML's reference requires for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: Handle,
    index: c_uint,
    result: *mut Handle,
) -> c_int {
    device("nvmlDeviceGetMigDeviceHandleByIndex", handle, |_, gpu| {
        require_mig(gpu)?;
        let layout = instances::of(gpu)?;
        let target = layout
            .gpu_instances
            .iter()
            .flat_map(|instance| {
                instance
                    .compute_instances
                    .iter()
                    .map(|compute| (instance.id, compute.id))
            })
            .nth(index as usize)
            .map(|(instance, compute)| Target::MigDevice(gpu.uuid.clone(), instance, compute));
        if result.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let found = handles::of_target(target.ok_or(Code::NOT_FOUND)?);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(result, found) }
    })
}

/// # Safety
/// As NVML's reference requires for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    handle: Handle,
    result: *mut Handle,
) -> c_int {
    gpu_or_instance(
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        handle,
        |_, gpu, target| {
            find(gpu, target)?;
            // SAFETY: the caller provides one handle.
            unsafe { write_value(result, handles::of(&gpu.uuid)) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(handle: Handle, result: *mut c_uint) -> c_int {
    gpu_or_instance("nvmlDeviceIsMigDeviceHandle", handle, |_, _, target| {
        let is_mig = matches!(target, Target::MigDevice(..));
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(result, is_mig.into()) }
    })
}

/// # Safety
/// As NVML's reference requires for `id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(handle: Handle, id: *mut c_uint) -> c_int {
    gpu_or_instance("nvmlDeviceGetGpuInstanceId", handle, |_, gpu, target| {
        let result = existing(gpu, target)?.instance.id;
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(id, result) }
    })
}

/// # Safety
/// As NVML's reference requires for `id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(handle: Handle, id: *mut c_uint) -> c_int {
    gpu_or_instance(
        "nvmlDeviceGetComputeInstanceId",
        handle,
        |_, gpu, target| {
            let result = existing(gpu, target)?.compute.id;
            // SAFETY: the caller provides one unsigned int.
            unsafe { write_value(id, result) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for `result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    handle: Handle,
    result: *mut Attributes,
) -> c_int {
    gpu_or_instance("nvmlDeviceGetAttributes_v2", handle, |_, gpu, target| {
        let found = existing(gpu, target)?;
        let attributes = Attributes {
            multiprocessor_count: multiprocessors(gpu, found.profile, found.compute.size),
            shared_copy_engine_count: found.profile.copy_engines,
            shared_decoder_count: found.profile.decoders,
            shared_encoder_count: found.profile.encoders,
            shared_jpeg_count: found.profile.jpeg,
            shared_ofa_count: found.profile.ofa,
            gpu_instance_slice_count: found.profile.slices,
            compute_instance_slice_count: found.compute.size,
            memory_size_mb: found.profile.memory_mib,
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(result, attributes) }
    })
}

/// The MIG device of a call that supports only MIG devices.
fn existing<'a>(gpu: &'a Gpu, target: &Target) -> Result<MigDevice<'a>, Code> {
    if matches!(target, Target::Gpu(_)) {
        return Err(Code::NOT_SUPPORTED);
    }
    find(gpu, target)
}
