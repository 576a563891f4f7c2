//! Health and utilization: temperature, power, load, memory errors and remapped rows.

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::abi::{Code, FieldValue, SUCCESS, Temperature, Utilization, version, write_value};
use crate::call::{device, values};
use crate::handles::Handle;
use crate::mig::instances;
use crate::state::{Gpu, State};

const GPU_SENSOR: c_uint = 0;
const CORRECTED: c_uint = 0;
const UNCORRECTED: c_uint = 1;
const COUNTERS: c_uint = 2;
const DEVICE_MEMORY: c_uint = 2;
const LOCATIONS: c_uint = 8;
const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;

values! {
    nvmlDeviceGetPowerUsage: c_uint = |state, gpu| Ok(state.condition(gpu).power_milliwatts);
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |_, gpu| Ok(gpu.power_limit_watts.saturating_mul(1000));
    nvmlDeviceGetPowerManagementLimit: c_uint = |_, gpu| Ok(gpu.power_limit_watts.saturating_mul(1000));
    nvmlDeviceGetUtilizationRates: Utilization = |state, gpu| {
        // nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not currently supported."
        if instances::of(gpu)?.mode {
            return Err(Code::NOT_SUPPORTED);
        }
        let (of_gpu, of_memory) = state.condition(gpu).utilization;
        Ok(Utilization { gpu: of_gpu, memory: of_memory })
    };
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |state, gpu| {
        // nvml.h: "For Volta or newer fully supported devices."
        const VOLTA: u32 = 5;
        if gpu.architecture < VOLTA {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(state.condition(gpu).energy_millijoules)
    };
    nvmlDeviceGetCurrentClocksEventReasons: c_ulonglong =
        |state, gpu| Ok(state.condition(gpu).clock_event_reasons);
}

/// # Safety
/// As NVML's reference requires for `megahertz`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    handle: Handle,
    kind: c_uint,
    megahertz: *mut c_uint,
) -> c_int {
    /// NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM and NVML_CLOCK_VIDEO.
    const GRAPHICS: c_uint = 0;
    const SM: c_uint = 1;
    const MEMORY: c_uint = 2;
    const VIDEO: c_uint = 3;
    device("nvmlDeviceGetClockInfo", handle, |state, gpu| {
        let condition = state.condition(gpu);
        let clock = match kind {
            GRAPHICS | SM | VIDEO => condition.sm_clock_mhz,
            MEMORY => condition.memory_clock_mhz,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(megahertz, clock) }
    })
}

/// # Safety
/// As NVML's reference requires for `celsius`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    handle: Handle,
    sensor: c_uint,
    celsius: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetTemperature", handle, |state, gpu| {
        if sensor != GPU_SENSOR {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller provides one unsigned int.
        unsafe { write_value(celsius, state.condition(gpu).temperature) }
    })
}

/// # Safety
/// As NVML's reference requires for `temperature`. Its version and sensor are set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperatureV(
    handle: Handle,
    temperature: *mut Temperature,
) -> c_int {
    device("nvmlDeviceGetTemperatureV", handle, |state, gpu| {
        // SAFETY: null or one structure.
        let given = unsafe { temperature.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        if given.version != version::<Temperature>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if given.sensor != GPU_SENSOR {
            return Err(Code::INVALID_ARGUMENT);
        }
        given.celsius = state.condition(gpu).temperature as i32;
        Ok(())
    })
}

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    handle: Handle,
    now: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    device("nvmlDeviceGetEccMode", handle, |_, gpu| {
        with_ecc(gpu)?;
        // SAFETY: the caller provides two enums.
        unsafe {
            write_value(now, 1)?;
            write_value(pending, 1)
        }
    })
}

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: Handle,
    kind: c_uint,
    counter: c_uint,
    count: *mut c_ulonglong,
) -> c_int {
    device("nvmlDeviceGetTotalEccErrors", handle, |state, gpu| {
        let errors = ecc_errors(state, gpu, kind, counter)?;
        // SAFETY: the caller provides one 64-bit number.
        unsafe { write_value(count, errors) }
    })
}

/// # Safety
/// As NVML's reference requires for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    handle: Handle,
    kind: c_uint,
    counter: c_uint,
    location: c_uint,
    count: *mut c_ulonglong,
) -> c_int {
    device("nvmlDeviceGetMemoryErrorCounter", handle, |state, gpu| {
        let errors = ecc_errors(state, gpu, kind, counter)?;
        if location >= LOCATIONS {
            return Err(Code::INVALID_ARGUMENT);
        }
        // The state has errors of device memory only.
        // SAFETY: the caller provides one 64-bit number.
        unsafe { write_value(count, if location == DEVICE_MEMORY { errors } else { 0 }) }
    })
}

/// # Safety
/// As NVML's reference requires for all four pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    handle: Handle,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_int {
    const AMPERE: u32 = 7;
    device("nvmlDeviceGetRemappedRows", handle, |state, gpu| {
        // GPUs before Ampere retire pages and do not remap rows; neither do those without ECC.
        if gpu.architecture < AMPERE || !gpu.ecc {
            return Err(Code::NOT_SUPPORTED);
        }
        let rows = state.condition(gpu).remapped_rows;
        // SAFETY: the caller provides four unsigned ints.
        unsafe {
            write_value(corrected, rows.0)?;
            write_value(uncorrected, rows.1)?;
            write_value(pending, rows.2)?;
            write_value(failed, rows.3)
        }
    })
}

/// The values of fields; each has its own return code.
///
/// # Safety
/// As NVML's reference requires for `values`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    handle: Handle,
    count: c_int,
    values: *mut FieldValue,
) -> c_int {
    device("nvmlDeviceGetFieldValues", handle, |state, gpu| {
        if values.is_null() || count <= 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller provides `count` structures.
        for field in unsafe { std::slice::from_raw_parts_mut(values, count as usize) } {
            match field_value(state, gpu, field) {
                Ok((value_type, value)) => {
                    field.value_type = value_type;
                    field.code = SUCCESS;
                    field.value = value.to_ne_bytes();
                }
                Err(Code(code)) => field.code = code,
            }
        }
        Ok(())
    })
}

/// The type of a value, and the value.
fn field_value(state: &State, gpu: &Gpu, field: &FieldValue) -> Result<(u32, u64), Code> {
    /// NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB.
    const NVLINK_TRANSMIT: u32 = 138;
    const NVLINK_RECEIVE: u32 = 139;
    /// In place of a link: all of them.
    const ALL_LINKS: u32 = u32::MAX;
    /// NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES.
    const PCIE_TRANSMIT: u32 = 197;
    const PCIE_RECEIVE: u32 = 198;
    /// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since driver 565 (change log of NVML).
    const RECOVERY_ACTION: u32 = 230;
    let branch = state.driver.as_ref().map_or(0, |driver| driver.branch());
    let condition = state.condition(gpu);
    match field.field_id {
        RECOVERY_ACTION if branch >= 565 => {
            Ok((UNSIGNED_INT, u64::from(condition.recovery_action)))
        }
        NVLINK_TRANSMIT | NVLINK_RECEIVE if gpu.nvlinks.is_empty() => Err(Code::NOT_SUPPORTED),
        NVLINK_TRANSMIT | NVLINK_RECEIVE if field.scope_id != ALL_LINKS => {
            Err(Code::INVALID_ARGUMENT)
        }
        NVLINK_TRANSMIT => Ok((UNSIGNED_LONG_LONG, condition.nvlink_kibibytes.0)),
        NVLINK_RECEIVE => Ok((UNSIGNED_LONG_LONG, condition.nvlink_kibibytes.1)),
        PCIE_TRANSMIT => Ok((UNSIGNED_LONG_LONG, condition.pcie_bytes.0)),
        PCIE_RECEIVE => Ok((UNSIGNED_LONG_LONG, condition.pcie_bytes.1)),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn with_ecc(gpu: &Gpu) -> Result<(), Code> {
    if gpu.ecc {
        Ok(())
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

fn ecc_errors(state: &State, gpu: &Gpu, kind: c_uint, counter: c_uint) -> Result<u64, Code> {
    with_ecc(gpu)?;
    if counter >= COUNTERS {
        return Err(Code::INVALID_ARGUMENT);
    }
    match kind {
        CORRECTED => Ok(state.condition(gpu).ecc_corrected),
        UNCORRECTED => Ok(state.condition(gpu).ecc_uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}
