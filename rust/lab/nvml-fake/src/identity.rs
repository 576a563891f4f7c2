//! The identity of a GPU: names, numbers, versions, PCI identity and link.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{Code, PciInfo, PciInfoExt, field, version, write_text, write_value};
use crate::call::{device, gpu_or_instance, texts, values};
use crate::handles::{Handle, Target};
use crate::mig;
use crate::state::{Pci, address_parts};

texts! {
    nvmlDeviceGetSerial = |gpu| Ok(&gpu.serial);
    nvmlDeviceGetVbiosVersion = |gpu| Ok(&gpu.vbios);
    nvmlDeviceGetBoardPartNumber = |gpu| Ok(&gpu.part_number);
}

values! {
    nvmlDeviceGetBrand: c_uint = |_, gpu| Ok(gpu.brand);
    nvmlDeviceGetArchitecture: c_uint = |_, gpu| Ok(gpu.architecture);
    nvmlDeviceGetMinorNumber: c_uint = |_, gpu| Ok(gpu.minor);
    nvmlDeviceGetNumGpuCores: c_uint = |_, gpu| Ok(gpu.cores);
    nvmlDeviceGetIndex: c_uint = |state, gpu| {
        let index = state.present().iter().position(|other| other.uuid == gpu.uuid);
        index.map(|index| index as c_uint).ok_or(Code::GPU_IS_LOST)
    };
    nvmlDeviceGetBoardId: c_uint = |_, gpu| {
        let (domain, bus, slot, function) = address_parts(&gpu.pci.address).ok_or(Code::UNKNOWN)?;
        Ok(domain << 16 | bus << 8 | slot << 3 | function)
    };
    nvmlDeviceGetPciInfo_v3: PciInfo = |_, gpu| pci_info(&gpu.pci);
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |_, gpu| Ok(gpu.link.generation);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |_, gpu| Ok(gpu.link.width);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |_, gpu| Ok(gpu.link.max_generation);
    nvmlDeviceGetGpuMaxPcieLinkGeneration: c_uint = |_, gpu| Ok(gpu.link.max_generation);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |_, gpu| Ok(gpu.link.max_width);
}

/// # Safety
/// As NVML's reference requires for `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    handle: Handle,
    buffer: *mut c_char,
    length: c_uint,
) -> c_int {
    gpu_or_instance("nvmlDeviceGetUUID", handle, |_, gpu, target| {
        let uuid = match target {
            Target::Gpu(uuid) => uuid.clone(),
            _ => mig::device::find(gpu, target)?.compute.uuid,
        };
        // SAFETY: the caller provides `length` bytes.
        unsafe { write_text(buffer, length, &uuid) }
    })
}

/// # Safety
/// As NVML's reference requires for `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    handle: Handle,
    buffer: *mut c_char,
    length: c_uint,
) -> c_int {
    gpu_or_instance("nvmlDeviceGetName", handle, |_, gpu, target| {
        let name = match target {
            Target::Gpu(_) => gpu.name.clone(),
            _ => mig::device::find(gpu, target)?.name(gpu),
        };
        // SAFETY: the caller provides `length` bytes.
        unsafe { write_text(buffer, length, &name) }
    })
}

/// NVML writes domains with eight digits in one field and four in the older one, all in upper case.
pub(crate) fn pci_info(pci: &Pci) -> Result<PciInfo, Code> {
    let (domain, bus, device, function) = address_parts(&pci.address).ok_or(Code::UNKNOWN)?;
    Ok(PciInfo {
        bus_id_legacy: field(&format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")),
        domain,
        bus,
        device,
        pci_device_id: pci.device_id,
        pci_subsystem_id: pci.subsystem_id,
        bus_id: field(&format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")),
    })
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    handle: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    device("nvmlDeviceGetCudaComputeCapability", handle, |_, gpu| {
        // SAFETY: the caller provides two ints.
        unsafe {
            write_value(major, gpu.compute_capability.0)?;
            write_value(minor, gpu.compute_capability.1)
        }
    })
}

/// # Safety
/// As NVML's reference requires for `info`. Its version is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfoExt(handle: Handle, info: *mut PciInfoExt) -> c_int {
    device("nvmlDeviceGetPciInfoExt", handle, |_, gpu| {
        // SAFETY: null or one structure.
        let requested = unsafe { info.as_ref() }
            .ok_or(Code::INVALID_ARGUMENT)?
            .version;
        if requested != version::<PciInfoExt>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let short = pci_info(&gpu.pci)?;
        let full = PciInfoExt {
            version: requested,
            domain: short.domain,
            bus: short.bus,
            device: short.device,
            pci_device_id: short.pci_device_id,
            pci_subsystem_id: short.pci_subsystem_id,
            base_class: 0x03,
            sub_class: 0x02,
            bus_id: short.bus_id,
        };
        // SAFETY: the caller provides one structure.
        unsafe { write_value(info, full) }
    })
}
