//! Structures of NVML's Multi-Instance GPU calls, as nvml.h lays them out.

use crate::handles::Handle;

/// nvmlGpuInstanceProfileInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileInfo {
    pub(crate) id: u32,
    pub(crate) is_p2p_supported: u32,
    pub(crate) slice_count: u32,
    pub(crate) instance_count: u32,
    pub(crate) multiprocessor_count: u32,
    pub(crate) copy_engine_count: u32,
    pub(crate) decoder_count: u32,
    pub(crate) encoder_count: u32,
    pub(crate) jpeg_count: u32,
    pub(crate) ofa_count: u32,
    pub(crate) memory_size_mb: u64,
}

/// nvmlGpuInstanceProfileInfo_v2_t. Not a version before the first structure: the fields are aligned otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileInfoV2 {
    pub(crate) version: u32,
    pub(crate) id: u32,
    pub(crate) is_p2p_supported: u32,
    pub(crate) slice_count: u32,
    pub(crate) instance_count: u32,
    pub(crate) multiprocessor_count: u32,
    pub(crate) copy_engine_count: u32,
    pub(crate) decoder_count: u32,
    pub(crate) encoder_count: u32,
    pub(crate) jpeg_count: u32,
    pub(crate) ofa_count: u32,
    pub(crate) memory_size_mb: u64,
    pub(crate) name: [u8; 96],
}

/// nvmlGpuInstancePlacement_t, in memory slices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) start: u32,
    pub(crate) size: u32,
}

/// nvmlGpuInstanceInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuInstanceInfo {
    pub(crate) device: Handle,
    pub(crate) id: u32,
    pub(crate) profile_id: u32,
    pub(crate) placement: Placement,
}

/// nvmlComputeInstanceProfileInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeProfileInfo {
    pub(crate) id: u32,
    pub(crate) slice_count: u32,
    pub(crate) instance_count: u32,
    pub(crate) multiprocessor_count: u32,
    pub(crate) shared_copy_engine_count: u32,
    pub(crate) shared_decoder_count: u32,
    pub(crate) shared_encoder_count: u32,
    pub(crate) shared_jpeg_count: u32,
    pub(crate) shared_ofa_count: u32,
}

/// nvmlComputeInstanceProfileInfo_v2_t: the first structure between a version and a name, without padding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeProfileInfoV2 {
    pub(crate) version: u32,
    pub(crate) info: ComputeProfileInfo,
    pub(crate) name: [u8; 96],
}

/// nvmlComputeInstanceInfo_t; the placement is in compute slices of the GPU instance.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeInstanceInfo {
    pub(crate) device: Handle,
    pub(crate) gpu_instance: Handle,
    pub(crate) id: u32,
    pub(crate) profile_id: u32,
    pub(crate) placement: Placement,
}

/// nvmlDeviceAttributes_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) multiprocessor_count: u32,
    pub(crate) shared_copy_engine_count: u32,
    pub(crate) shared_decoder_count: u32,
    pub(crate) shared_encoder_count: u32,
    pub(crate) shared_jpeg_count: u32,
    pub(crate) shared_ofa_count: u32,
    pub(crate) gpu_instance_slice_count: u32,
    pub(crate) compute_instance_slice_count: u32,
    pub(crate) memory_size_mb: u64,
}
