//! Initialization and shutdown, with NVML's reference count.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Code;
use crate::call::guarded;
use crate::{faults, files, latency, state};

static REFERENCES: AtomicUsize = AtomicUsize::new(0);

/// UNINITIALIZED unless the library is initialized.
pub(crate) fn check() -> Result<(), Code> {
    if REFERENCES.load(Ordering::Acquire) == 0 {
        Err(Code::UNINITIALIZED)
    } else {
        Ok(())
    }
}

fn init() -> i32 {
    guarded(|| {
        faults::before("nvmlInit", None)?;
        let state = state::current()?;
        let Some(driver) = &state.driver else {
            return Err(Code::DRIVER_NOT_LOADED);
        };
        if files::file_version().is_some_and(|version| version != driver.version) {
            return Err(Code::LIB_RM_VERSION_MISMATCH);
        }
        latency::init(&state);
        REFERENCES.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> i32 {
    init()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> i32 {
    init()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> i32 {
    init()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> i32 {
    guarded(|| {
        faults::before("nvmlShutdown", None)?;
        REFERENCES
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| {
                users.checked_sub(1)
            })
            .map(|users| {
                if users == 1 {
                    latency::shut_down();
                }
            })
            .map_err(|_| Code::UNINITIALIZED)
    })
}
