//! Which profiles a GPU offers and where their instances could lie, whether its mode is on or not.

use std::ffi::{c_int, c_uint};

use crate::abi::{Code, field, put, put_list, version};
use crate::call::device;
use crate::handles::Handle;
use crate::mig::abi::{Placement, ProfileInfo, ProfileInfoV2};
use crate::state::{Gpu, MigProfile};

const PROFILES: c_uint = 0x12;

/// # Safety
/// As NVML's reference demands of `info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    handle: Handle,
    number: c_uint,
    info: *mut ProfileInfo,
) -> c_int {
    device("nvmlDeviceGetGpuInstanceProfileInfo", handle, |_, gpu| {
        let profile = profile(gpu, number)?;
        let answer = ProfileInfo {
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.most,
            multiprocessor_count: profile.multiprocessors,
            copy_engine_count: profile.copy_engines,
            decoder_count: profile.decoders,
            encoder_count: profile.encoders,
            jpeg_count: profile.jpeg,
            ofa_count: profile.ofa,
            memory_size_mb: profile.memory_mib,
        };
        // SAFETY: the caller gives one structure.
        unsafe { put(info, answer) }
    })
}

/// # Safety
/// As NVML's reference demands of `info`, whose version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    handle: Handle,
    number: c_uint,
    info: *mut ProfileInfoV2,
) -> c_int {
    device("nvmlDeviceGetGpuInstanceProfileInfoV", handle, |_, gpu| {
        // SAFETY: null or one structure.
        let given = unsafe { info.as_ref() }
            .ok_or(Code::INVALID_ARGUMENT)?
            .version;
        if given != version::<ProfileInfoV2>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let profile = profile(gpu, number)?;
        let answer = ProfileInfoV2 {
            version: given,
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.most,
            multiprocessor_count: profile.multiprocessors,
            copy_engine_count: profile.copy_engines,
            decoder_count: profile.decoders,
            encoder_count: profile.encoders,
            jpeg_count: profile.jpeg,
            ofa_count: profile.ofa,
            memory_size_mb: profile.memory_mib,
            name: field(&profile.name),
        };
        // SAFETY: the caller gives one structure.
        unsafe { put(info, answer) }
    })
}

/// # Safety
/// As NVML's reference demands of both pointers.
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
        |_, gpu| {
            capable(gpu)?;
            let places: Vec<_> = with_id(gpu, id)
                .map_err(|_| Code::NOT_SUPPORTED)?
                .placements
                .iter()
                .map(|&(start, size)| Placement { start, size })
                .collect();
            if list.is_null() && !count.is_null() {
                // Without a list this call tells how many there are, and succeeds.
                // SAFETY: the caller gives one unsigned int.
                return unsafe { put(count, places.len() as c_uint) };
            }
            // SAFETY: the caller gives a count, and a list with that room.
            unsafe { put_list(count, list, &places) }
        },
    )
}

/// NOT_SUPPORTED where a GPU can never be divided.
pub(crate) fn capable(gpu: &Gpu) -> Result<(), Code> {
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

/// The profile that an instance is made of; INVALID_ARGUMENT where there is no such one.
pub(crate) fn with_id(gpu: &Gpu, id: u32) -> Result<&MigProfile, Code> {
    gpu.mig
        .iter()
        .find(|profile| profile.id == id)
        .ok_or(Code::INVALID_ARGUMENT)
}
