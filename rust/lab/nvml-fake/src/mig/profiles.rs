//! Profiles of a GPU and their possible placements, independent of the MIG mode.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, field, version, write_list, write_value};
use crate::call::device;
use crate::handles::Handle;
use crate::mig::abi::{Placement, ProfileInfo, ProfileInfoV2};
use crate::mig::access::require_config;
use crate::mig::instances;
use crate::state::{Gpu, MigProfile};

const PROFILES: c_uint = 0x12;

/// # Safety
/// As NVML's reference requires for `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    handle: Handle,
    number: c_uint,
    info: *mut ProfileInfo,
) -> c_int {
    device("nvmlDeviceGetGpuInstanceProfileInfo", handle, |_, gpu| {
        let profile = profile(gpu, number)?;
        let result = ProfileInfo {
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.max_instances,
            multiprocessor_count: profile.multiprocessors,
            copy_engine_count: profile.copy_engines,
            decoder_count: profile.decoders,
            encoder_count: profile.encoders,
            jpeg_count: profile.jpeg,
            ofa_count: profile.ofa,
            memory_size_mb: profile.memory_mib,
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(info, result) }
    })
}

/// # Safety
/// As NVML's reference requires for `info`. Its version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    handle: Handle,
    number: c_uint,
    info: *mut ProfileInfoV2,
) -> c_int {
    device(
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        handle,
        |state, gpu| {
            // SAFETY: null or one structure.
            let requested = unsafe { info.as_ref() }
                .ok_or(Code::INVALID_ARGUMENT)?
                .version;
            if requested != version::<ProfileInfoV2>(2) {
                return Err(Code::ARGUMENT_VERSION_MISMATCH);
            }
            // nvml.h: NOT_SUPPORTED "if device doesn't have MIG mode enabled". Not verified: which drivers do so.
            let needs_mig = state
                .driver
                .as_ref()
                .is_some_and(|driver| driver.profiles_need_mig);
            if needs_mig && !instances::of(gpu)?.mode {
                return Err(Code::NOT_SUPPORTED);
            }
            let profile = profile(gpu, number)?;
            let result = ProfileInfoV2 {
                version: requested,
                id: profile.id,
                is_p2p_supported: 0,
                slice_count: profile.slices,
                instance_count: profile.max_instances,
                multiprocessor_count: profile.multiprocessors,
                copy_engine_count: profile.copy_engines,
                decoder_count: profile.decoders,
                encoder_count: profile.encoders,
                jpeg_count: profile.jpeg,
                ofa_count: profile.ofa,
                memory_size_mb: profile.memory_mib,
                name: field(&profile.name),
            };
            // SAFETY: the caller provides one structure.
            unsafe { write_value(info, result) }
        },
    )
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    handle: Handle,
    id: c_uint,
    list: *mut Placement,
    count: *mut c_uint,
) -> c_int {
    device(
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        handle,
        |state, gpu| {
            require_mig(gpu)?;
            require_config(state)?;
            let places: Vec<_> = with_id(gpu, id)
                .map_err(|_| Code::NOT_SUPPORTED)?
                .placements
                .iter()
                .map(|&(start, size)| Placement { start, size })
                .collect();
            if list.is_null() && !count.is_null() {
                // Without a list, the query of the length succeeds.
                // SAFETY: the caller provides one unsigned int.
                return unsafe { write_value(count, places.len() as c_uint) };
            }
            // SAFETY: the caller provides a count, and a list with that capacity.
            unsafe { write_list(count, list, &places) }
        },
    )
}

/// NOT_SUPPORTED for a GPU without MIG.
pub(crate) fn require_mig(gpu: &Gpu) -> Result<(), Code> {
    if gpu.mig.is_empty() {
        Err(Code::NOT_SUPPORTED)
    } else {
        Ok(())
    }
}

fn profile(gpu: &Gpu, number: c_uint) -> Result<&MigProfile, Code> {
    if number >= PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    gpu.mig
        .iter()
        .find(|profile| profile.profile == number)
        .ok_or(Code::NOT_SUPPORTED)
}

/// The profile with the id. INVALID_ARGUMENT if it does not exist.
pub(crate) fn with_id(gpu: &Gpu, id: u32) -> Result<&MigProfile, Code> {
    gpu.mig
        .iter()
        .find(|profile| profile.id == id)
        .ok_or(Code::INVALID_ARGUMENT)
}
