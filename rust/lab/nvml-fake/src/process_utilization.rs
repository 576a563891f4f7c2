//! Utilization by process: a sample of each process that worked after a time.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::abi::{Code, ProcessUtilizationSample, write_value};
use crate::call::device;
use crate::handles::Handle;
use crate::mig::instances;
use crate::state::Process;

/// What the driver returns as the size of the list, with and without processes (NVIDIA/go-nvml#11).
const MAX_SAMPLES: c_uint = 100;

/// # Safety
/// As NVML's reference requires for both pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    handle: Handle,
    list: *mut ProcessUtilizationSample,
    count: *mut c_uint,
    last_seen_us: c_ulonglong,
) -> c_int {
    const MAXWELL: u32 = 3;
    device("nvmlDeviceGetProcessUtilization", handle, |state, gpu| {
        // nvml.h: "For Maxwell or newer fully supported devices", and not in MIG mode.
        if gpu.architecture < MAXWELL || instances::of(gpu)?.mode {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: null or one number.
        let room = *unsafe { count.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
        if list.is_null() {
            // SAFETY: the caller provides one number.
            unsafe { write_value(count, MAX_SAMPLES) }?;
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let found = samples(state.processes(gpu), last_seen_us, now.as_micros() as u64);
        if found.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        if found.len() > room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller provides a list with that capacity.
        unsafe { list.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        // SAFETY: the caller provides one number.
        unsafe { write_value(count, found.len() as c_uint) }
    })
}

/// The samples after a time: those of now, and all whose time is given, as drivers return older ones too
/// (Syllo/nvtop#110).
fn samples<'a>(
    processes: impl Iterator<Item = &'a Process>,
    last_seen_us: u64,
    now_us: u64,
) -> Vec<ProcessUtilizationSample> {
    processes
        .filter(|process| process.utilization != (0, 0))
        .filter(|process| process.sampled_at_us.is_some() || now_us > last_seen_us)
        .map(|process| ProcessUtilizationSample {
            pid: process.pid,
            timestamp_us: process.sampled_at_us.unwrap_or(now_us),
            sm: process.utilization.0,
            memory: process.utilization.1,
            encoder: 0,
            decoder: 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::NO_INSTANCE;

    fn process(pid: u32, utilization: (u32, u32), sampled_at_us: Option<u64>) -> Process {
        Process {
            device: "GPU-0".into(),
            pid,
            memory_bytes: 0,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
            cgroup: None,
            utilization,
            sampled_at_us,
        }
    }

    #[test]
    fn a_process_that_worked_has_a_sample() {
        let processes = [process(1, (30, 4), None), process(2, (0, 0), None)];
        let found = samples(processes.iter(), 100, 200);
        let expected = ProcessUtilizationSample {
            pid: 1,
            timestamp_us: 200,
            sm: 30,
            memory: 4,
            encoder: 0,
            decoder: 0,
        };
        assert_eq!(found, [expected]);
        assert_eq!(samples(processes.iter(), 200, 200), []);
    }

    #[test]
    fn a_given_time_is_returned_even_if_it_is_older() {
        let processes = [process(1, (30, 4), Some(50))];
        assert_eq!(samples(processes.iter(), 100, 200)[0].timestamp_us, 50);
    }
}
