//! GPU Performance Monitoring (GPM): samples of counters, and averages between two of them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::abi::{Code, GpmMetric, GpmMetricsGet, GpmSupport, NO_INSTANCE, SUCCESS, write_value};
use crate::call::{device, system};
use crate::files::lock;
use crate::handles::Handle;
use crate::load::{self, Activity};
use crate::mig::access::require_admin;
use crate::mig::instances;
use crate::state::{Gpu, State};

/// nvml.h: "For Hopper or newer fully supported devices."
const HOPPER: u32 = 9;
/// nvml.h: in guests only with vGPUs that are backed by MIG.
const VGPU: u32 = 2;
/// The first driver whose reference has the functions.
const FIRST_BRANCH: u32 = 520;
/// NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL.
const GRAPHICS: c_uint = 1;
const SM: c_uint = 2;
const TENSOR: c_uint = 5;
const DRAM: c_uint = 10;
/// NVML_GPM_METRIC_MAX of NVML 12.9.
const MAX_METRICS: c_uint = 333;
/// nvml.h: the interval of two samples "should be greater than 100ms due to the internal sample refresh rate".
const REFRESH_MS: u64 = 100;
/// Allocated samples of a process; a process that frees them needs one for each GPU and instance, and one for each of its threads.
const MAX_SAMPLES: usize = 256;
const FIRST_SAMPLE: usize = 0x4750_0000;
const STEP: usize = 16;

/// The content of a sample, which is read before a metric is computed.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    gpu: String,
    instance: u32,
    taken_ms: u64,
    /// Time and totals of the schedule that is played there.
    played: Option<(u64, Activity)>,
    /// Percent now.
    current: Activity,
    /// Return codes and values of metrics that differ from it.
    overrides: BTreeMap<u32, (i32, Option<f64>)>,
}

static SAMPLES: Mutex<BTreeMap<usize, Option<Sample>>> = Mutex::new(BTreeMap::new());

/// # Safety
/// As NVML's reference requires for `support`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    handle: Handle,
    support: *mut GpmSupport,
) -> c_int {
    device("nvmlGpmQueryDeviceSupport", handle, |state, gpu| {
        require_functions(state)?;
        // SAFETY: null or one structure.
        let given = unsafe { support.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
        // NVML_GPM_SUPPORT_VERSION is the bare number.
        if given.version != 1 {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        given.is_supported = is_supported(gpu).into();
        Ok(())
    })
}

/// # Safety
/// As NVML's reference requires for `sample`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(sample: *mut Handle) -> c_int {
    system("nvmlGpmSampleAlloc", |state| {
        require_functions(state)?;
        if sample.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let mut samples = lock(&SAMPLES);
        if samples.len() >= MAX_SAMPLES {
            return Err(Code::MEMORY);
        }
        let handle = samples
            .last_key_value()
            .map_or(FIRST_SAMPLE, |(last, _)| last + STEP);
        samples.insert(handle, None);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(sample, handle) }
    })
}

/// Frees a sample.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: Handle) -> c_int {
    system("nvmlGpmSampleFree", |_| {
        let freed = lock(&SAMPLES).remove(&sample);
        freed.map(|_| ()).ok_or(Code::INVALID_ARGUMENT)
    })
}

/// Reads the counters of a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleGet(handle: Handle, sample: Handle) -> c_int {
    device("nvmlGpmSampleGet", handle, |state, gpu| {
        take(state, gpu, NO_INSTANCE, sample)
    })
}

/// Reads the counters of a GPU instance. Assumed: that it needs CAP_SYS_ADMIN, as DCGM's host engine has it.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMigSampleGet(handle: Handle, instance: c_uint, sample: Handle) -> c_int {
    device("nvmlGpmMigSampleGet", handle, |state, gpu| {
        require_admin(state)?;
        instances::of(gpu)?.gpu_instance(instance)?;
        take(state, gpu, instance, sample)
    })
}

/// # Safety
/// As NVML's reference requires for `request`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: *mut GpmMetricsGet) -> c_int {
    system("nvmlGpmMetricsGet", |state| {
        require_functions(state)?;
        // SAFETY: null or one structure, whose array of metrics follows its first fields.
        let given = unsafe { request.as_ref() }.ok_or(Code::INVALID_ARGUMENT)?;
        // NVML_GPM_METRICS_GET_VERSION is the bare number too.
        if given.version != 1 {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if given.count == 0 || given.count > MAX_METRICS {
            return Err(Code::INVALID_ARGUMENT);
        }
        let (before, now) = (taken(given.before)?, taken(given.now)?);
        if (&before.gpu, before.instance) != (&now.gpu, now.instance) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let count = given.count as usize;
        // SAFETY: the caller provides `count` metrics after the first fields.
        let metrics =
            unsafe { std::slice::from_raw_parts_mut(request.add(1).cast::<GpmMetric>(), count) };
        for metric in metrics {
            let (code, value) = average(&before, &now, metric.id);
            metric.code = code;
            metric.value = value;
            metric.texts = [ptr::null(); 3];
        }
        Ok(())
    })
}

fn require_functions(state: &State) -> Result<(), Code> {
    let branch = state.driver.as_ref().map_or(0, |driver| driver.branch());
    if branch >= FIRST_BRANCH {
        Ok(())
    } else {
        Err(Code::FUNCTION_NOT_FOUND)
    }
}

fn is_supported(gpu: &Gpu) -> bool {
    gpu.architecture >= HOPPER && gpu.virtualization != VGPU
}

fn take(state: &State, gpu: &Gpu, instance: u32, handle: Handle) -> Result<(), Code> {
    require_functions(state)?;
    if !is_supported(gpu) {
        return Err(Code::NOT_SUPPORTED);
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let load = load::of(&state.loads, &gpu.uuid, instance);
    let condition = state.condition(gpu);
    let current = match load {
        Some(load) => load.activity(),
        None if instance == NO_INSTANCE => Activity::of(condition.utilization, None),
        None => Activity::default(),
    };
    let sample = Sample {
        gpu: gpu.uuid.clone(),
        instance,
        taken_ms: refreshed(now.as_millis() as u64),
        played: load.map(|load| {
            let elapsed_ms = refreshed(load.elapsed_ms());
            (elapsed_ms, load.total_activity(elapsed_ms))
        }),
        current,
        overrides: condition.gpm,
    };
    let mut samples = lock(&SAMPLES);
    let place = samples.get_mut(&handle).ok_or(Code::INVALID_ARGUMENT)?;
    *place = Some(sample);
    Ok(())
}

fn refreshed(milliseconds: u64) -> u64 {
    milliseconds / REFRESH_MS * REFRESH_MS
}

fn taken(handle: Handle) -> Result<Sample, Code> {
    let samples = lock(&SAMPLES);
    samples
        .get(&handle)
        .and_then(Clone::clone)
        .ok_or(Code::INVALID_ARGUMENT)
}

/// The return code and the value of a metric. Without time between the samples, 0 is divided by 0.
fn average(before: &Sample, now: &Sample, metric: u32) -> (i32, f64) {
    if let Some((code, value)) = now.overrides.get(&metric) {
        return (*code, value.unwrap_or(f64::NAN));
    }
    let part: fn(&Activity) -> f64 = match metric {
        GRAPHICS => |activity| activity.graphics,
        SM => |activity| activity.sm,
        TENSOR => |activity| activity.tensor,
        DRAM => |activity| activity.dram,
        _ => return (Code::NOT_SUPPORTED.0, 0.0),
    };
    let value = match (&before.played, &now.played) {
        (Some((began_ms, began)), Some((ended_ms, ended))) if ended_ms >= began_ms => {
            (part(ended) - part(began)) / (ended_ms - began_ms) as f64
        }
        _ if now.taken_ms > before.taken_ms => part(&now.current),
        _ => f64::NAN,
    };
    (SUCCESS, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(elapsed_ms: u64, percent: f64) -> Sample {
        let activity = Activity {
            graphics: percent,
            sm: percent / 2.0,
            tensor: 0.0,
            dram: percent / 4.0,
        };
        Sample {
            gpu: "GPU-1".into(),
            instance: NO_INSTANCE,
            taken_ms: elapsed_ms,
            played: None,
            current: activity,
            overrides: BTreeMap::new(),
        }
    }

    fn played(elapsed_ms: u64, total: f64) -> Sample {
        let mut sample = sample(elapsed_ms, 100.0);
        sample.current.graphics = total;
        sample.played = Some((elapsed_ms, sample.current.clone()));
        sample
    }

    #[test]
    fn an_average_is_of_the_time_between_two_samples() {
        let (before, now) = (played(1_000, 50_000.0), played(3_000, 150_000.0));
        assert_eq!(average(&before, &now, GRAPHICS), (SUCCESS, 50.0));
        let (before, now) = (sample(1_000, 10.0), sample(1_100, 80.0));
        assert_eq!(average(&before, &now, SM), (SUCCESS, 40.0));
    }

    #[test]
    fn without_time_there_is_no_number() {
        let (code, value) = average(&played(1_000, 5.0), &played(1_000, 5.0), GRAPHICS);
        assert_eq!((code, value.is_nan()), (SUCCESS, true));
        let (_, value) = average(&sample(1_000, 5.0), &sample(1_000, 5.0), DRAM);
        assert!(value.is_nan());
    }

    #[test]
    fn a_metric_can_fail_or_lie() {
        let mut now = sample(2_000, 5.0);
        now.overrides = [(SM, (3, Some(1.0))), (DRAM, (0, None))].into();
        let before = sample(1_000, 5.0);
        assert_eq!(average(&before, &now, SM), (3, 1.0));
        assert!(average(&before, &now, DRAM).1.is_nan());
        assert_eq!(average(&before, &now, 20), (Code::NOT_SUPPORTED.0, 0.0));
    }

    #[test]
    fn counters_change_every_100_milliseconds() {
        assert_eq!([99, 100, 250].map(refreshed), [0, 100, 200]);
    }
}
