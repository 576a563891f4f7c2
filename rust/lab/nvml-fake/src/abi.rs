//! The C ABI of nvml.h: return codes, structures and strings.

use std::ffi::{CStr, c_char, c_uint};

/// An NVML return code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(crate) const GPU_IS_LOST: Self = Self(15);
    pub(crate) const RESET_REQUIRED: Self = Self(16);
    pub(crate) const OPERATING_SYSTEM: Self = Self(17);
    pub(crate) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(crate) const IN_USE: Self = Self(19);
    pub(crate) const MEMORY: Self = Self(20);
    pub(crate) const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);
}

pub(crate) const SUCCESS: i32 = 0;

/// The instance id of an event or a process of the whole GPU.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

/// NVML's message for a return code.
pub(crate) fn message(code: i32) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"The operating system has blocked the request",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device, because ECC is enabled",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU not found",
        29 => c"Invalid state",
        30 => c"The requested reset type is not supported",
        _ => c"Unknown Error",
    }
}

/// Writes the value to the caller's pointer. INVALID_ARGUMENT if the pointer is null.
///
/// # Safety
/// `place` is null or valid for one write.
pub(crate) unsafe fn write_value<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller guarantees it.
    unsafe { place.write(value) };
    Ok(())
}

/// Copies a text with a terminating NUL. INSUFFICIENT_SIZE if it does not fit.
///
/// # Safety
/// `buffer` is null or valid for `length` bytes.
pub(crate) unsafe fn write_text(
    buffer: *mut c_char,
    length: c_uint,
    text: &str,
) -> Result<(), Code> {
    if buffer.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and one NUL fit.
    unsafe {
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list by NVML's protocol: `count` is the capacity, and then the number of elements. If the capacity is too
/// small, only the number is written. The result is then INSUFFICIENT_SIZE, unless the list is empty.
///
/// # Safety
/// `count` is null or valid; `list` is null or valid for `*count` elements.
pub(crate) unsafe fn write_list<T: Copy>(
    count: *mut c_uint,
    list: *mut T,
    values: &[T],
) -> Result<(), Code> {
    if count.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller guarantees it.
    let room = unsafe { count.replace(values.len() as c_uint) } as usize;
    if values.is_empty() {
        return Ok(());
    }
    if list.is_null() || room < values.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the capacity is sufficient.
    unsafe { list.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// A caller's text. INVALID_ARGUMENT if it is null or not UTF-8.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Code> {
    if text.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller guarantees the NUL.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| Code::INVALID_ARGUMENT)
}

/// A fixed-size text field, truncated and terminated with a NUL.
pub(crate) fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// NVML's version of a structure: the number in the top byte, the size in the lower bytes.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// nvmlPciInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) pci_device_id: u32,
    pub(crate) pci_subsystem_id: u32,
    pub(crate) bus_id: [u8; 32],
}

/// nvmlPciInfoExt_v1_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PciInfoExt {
    pub(crate) version: u32,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) pci_device_id: u32,
    pub(crate) pci_subsystem_id: u32,
    pub(crate) base_class: u32,
    pub(crate) sub_class: u32,
    pub(crate) bus_id: [u8; 32],
}

/// nvmlMemory_t. nvmlBAR1Memory_t has the same fields with the last two swapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// nvmlMemory_v2_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryV2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// nvmlProcessInfo_t, since version 2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: u32,
    pub(crate) used_gpu_memory: u64,
    pub(crate) gpu_instance_id: u32,
    pub(crate) compute_instance_id: u32,
}

/// nvmlProcessUtilizationSample_t: microseconds, and percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessUtilizationSample {
    pub(crate) pid: u32,
    pub(crate) timestamp_us: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// nvmlUtilization_t, in percent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Utilization {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
}

/// nvmlEventData_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventData {
    pub(crate) device: usize,
    pub(crate) event_type: u64,
    pub(crate) event_data: u64,
    pub(crate) gpu_instance_id: u32,
    pub(crate) compute_instance_id: u32,
}

/// nvmlGpuFabricInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricInfo {
    pub(crate) cluster_uuid: [u8; 16],
    pub(crate) status: u32,
    pub(crate) clique_id: u32,
    pub(crate) state: u32,
}

/// nvmlGpuFabricInfo_v2_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricInfoV2 {
    pub(crate) version: u32,
    pub(crate) info: FabricInfo,
    pub(crate) health_mask: u32,
}

/// nvmlGpuFabricInfo_v3_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricInfoV3 {
    pub(crate) version: u32,
    pub(crate) info: FabricInfo,
    pub(crate) health_mask: u32,
    pub(crate) health_summary: u8,
}

/// NVML_GPU_FABRIC_CLIQUE_MAX.
pub(crate) const MAX_CLIQUES: usize = 64;

/// nvmlGpuFabricClique_v1_t.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FabricClique {
    pub(crate) kind: u8,
    pub(crate) id: u32,
}

/// nvmlGpuFabricInfo_v4_t, which has no version field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricInfoV4 {
    pub(crate) cluster_uuid: [u8; 16],
    pub(crate) status: u32,
    pub(crate) cliques: [FabricClique; MAX_CLIQUES],
    pub(crate) clique_count: u32,
    pub(crate) state: u8,
    pub(crate) health_mask: u32,
    pub(crate) health_summary: u8,
}

/// nvmlDeviceAddressingMode_v1_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressingMode {
    pub(crate) version: u32,
    pub(crate) value: u32,
}

/// nvmlFieldValue_t; `value` is a union of 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldValue {
    pub(crate) field_id: u32,
    pub(crate) scope_id: u32,
    pub(crate) timestamp: i64,
    pub(crate) latency_us: i64,
    pub(crate) value_type: u32,
    pub(crate) code: i32,
    pub(crate) value: [u8; 8],
}

/// nvmlTemperature_v1_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temperature {
    pub(crate) version: u32,
    pub(crate) sensor: u32,
    pub(crate) celsius: i32,
}

/// nvmlGpmSupport_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpmSupport {
    pub(crate) version: u32,
    pub(crate) is_supported: u32,
}

/// The first fields of nvmlGpmMetricsGet_t. Its array of metrics follows, whose length grows with versions of nvml.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpmMetricsGet {
    pub(crate) version: u32,
    pub(crate) count: u32,
    pub(crate) before: usize,
    pub(crate) now: usize,
}

/// nvmlGpmMetric_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpmMetric {
    pub(crate) id: u32,
    pub(crate) code: i32,
    pub(crate) value: f64,
    /// Short name, long name and unit, which may be null.
    pub(crate) texts: [*const c_char; 3],
}
