//! Event sets: report events that occur on a GPU after its registration.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::abi::{Code, EventData, write_value};
use crate::call::{self, guarded, values};
use crate::files::lock;
use crate::handles::{self, Handle};
use crate::state::{self, Gpu, State};
use crate::{faults, lifecycle};

/// nvmlEventSet_t: a number, like device handles.
pub(crate) type EventSet = usize;

const BASE: EventSet = 0x4E57_0000;
const STEP: usize = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

const SINGLE_BIT_ECC: u64 = 0x1;
const DOUBLE_BIT_ECC: u64 = 0x2;
const P_STATE: u64 = 0x4;
const XID: u64 = 0x8;
const CLOCK: u64 = 0x10;
/// Storms of corrected errors, retirement of memory rows, and poison: since driver 560 (change log of NVML).
const SINCE_560: u64 = 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000;
/// GPU unavailable, and recovery action: since driver 565.
const SINCE_565: u64 = 0x4000 | 0x8000;

/// A GPU in a set: the registered kinds, and the sequence number of the last event.
#[derive(Debug)]
struct Registration {
    kinds: u64,
    last_sequence: u64,
}

type Registrations = BTreeMap<String, Registration>;

static SETS: Mutex<BTreeMap<EventSet, Arc<Mutex<Registrations>>>> = Mutex::new(BTreeMap::new());

fn find(set: EventSet) -> Result<Arc<Mutex<Registrations>>, Code> {
    lock(&SETS).get(&set).cloned().ok_or(Code::INVALID_ARGUMENT)
}

/// Which GPUs support the newer kinds is not documented: here those with ECC, since the kinds are about memory.
fn supported(state: &State, gpu: &Gpu) -> u64 {
    let branch = state.driver.as_ref().map_or(0, |driver| driver.branch());
    let mut kinds = P_STATE | XID | CLOCK;
    if gpu.ecc {
        kinds |= SINGLE_BIT_ECC | DOUBLE_BIT_ECC;
        if branch >= 560 {
            kinds |= SINCE_560;
        }
    }
    if branch >= 565 {
        kinds |= SINCE_565;
    }
    kinds
}

values! {
    nvmlDeviceGetSupportedEventTypes: u64 = |state, gpu| Ok(supported(state, gpu));
}

/// # Safety
/// As NVML's reference requires for `set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut EventSet) -> c_int {
    call::system("nvmlEventSetCreate", |_| {
        let mut sets = lock(&SETS);
        let new_set = sets.last_key_value().map_or(BASE, |(last, _)| last + STEP);
        // SAFETY: the caller provides one handle.
        unsafe { write_value(set, new_set) }?;
        sets.insert(new_set, Arc::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: EventSet) -> c_int {
    guarded(|| {
        lifecycle::check()?;
        lock(&SETS)
            .remove(&set)
            .map(|_| ())
            .ok_or(Code::INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(handle: Handle, kinds: u64, set: EventSet) -> c_int {
    call::device("nvmlDeviceRegisterEvents", handle, |state, gpu| {
        let set = find(set)?;
        if kinds & !supported(state, gpu) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        // Earlier events are not reported.
        let last_sequence = state
            .events
            .iter()
            .map(|event| event.sequence)
            .max()
            .unwrap_or(0);
        let mut registrations = lock(&set);
        let registration = registrations
            .entry(gpu.uuid.clone())
            .or_insert(Registration {
                kinds: 0,
                last_sequence,
            });
        registration.kinds |= kinds;
        Ok(())
    })
}

/// # Safety
/// As NVML's reference requires for `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: EventSet,
    data: *mut EventData,
    timeout_ms: c_uint,
) -> c_int {
    guarded(|| {
        lifecycle::check()?;
        let set = find(set)?;
        if data.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        faults::before("nvmlEventSetWait_v2", None)?;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            if let Some(event) = next(&*state::current()?, &mut lock(&set))? {
                // SAFETY: the caller provides one structure.
                return unsafe { write_value(data, event) };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Code::TIMEOUT);
            }
            sleep(left.min(POLL_INTERVAL));
            lifecycle::check()?;
        }
    })
}

/// # Safety
/// As NVML's reference requires for `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait(
    set: EventSet,
    data: *mut EventData,
    timeout_ms: c_uint,
) -> c_int {
    // SAFETY: the same contract; the older call fills the same structure.
    unsafe { nvmlEventSetWait_v2(set, data, timeout_ms) }
}

/// The oldest event that the set has not reported. A registered GPU that was removed is GPU_IS_LOST, once.
fn next(state: &State, registrations: &mut Registrations) -> Result<Option<EventData>, Code> {
    let mut events: Vec<_> = state.events.iter().collect();
    events.sort_by_key(|event| event.sequence);
    for event in events {
        let Some(registration) = registrations.get_mut(&event.device) else {
            continue;
        };
        if event.sequence <= registration.last_sequence {
            continue;
        }
        registration.last_sequence = event.sequence;
        if event.kind & registration.kinds != 0 {
            return Ok(Some(EventData {
                device: handles::of(&event.device),
                event_type: event.kind,
                event_data: event.data,
                gpu_instance_id: event.gpu_instance,
                compute_instance_id: event.compute_instance,
            }));
        }
    }
    let lost = registrations
        .keys()
        .find(|uuid| state.gpu(uuid).is_none_or(|gpu| !gpu.present))
        .cloned();
    match lost {
        Some(uuid) => {
            registrations.remove(&uuid);
            Err(Code::GPU_IS_LOST)
        }
        None => Ok(None),
    }
}
