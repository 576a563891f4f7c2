//! The way of every call: initialised or not, the faults, the handle, the GPU, and no panic across the C border.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{Code, SUCCESS};
use crate::handles::{self, Device};
use crate::state::{self, Gpu, State};
use crate::{faults, lifecycle};

/// A call about the host.
pub(crate) fn system(function: &str, work: impl FnOnce(&State) -> Result<(), Code>) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        faults::pass(&*state::current()?, function, None)?;
        work(&*state::current()?)
    })
}

/// A call about one GPU; GPU_IS_LOST where it is no longer plugged in.
pub(crate) fn device(
    function: &str,
    device: Device,
    work: impl FnOnce(&State, &Gpu) -> Result<(), Code>,
) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        let uuid = handles::uuid(device)?;
        faults::pass(&*state::current()?, function, Some(&uuid))?;
        // The state may have changed while a fault made the call wait.
        let state = state::current()?;
        let gpu = state
            .gpu(&uuid)
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        work(&state, gpu)
    })
}

/// Turns a result into a return code, and a panic into UNKNOWN.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Code>) -> i32 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(Code(code))) => code,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Defines calls of the shape `nvmlReturn_t f(nvmlDevice_t, T *answer)`, each with what it answers for a GPU.
macro_rules! values {
    ($($name:ident: $type:ty = $answer:expr;)+) => {$(
        /// # Safety
        /// As NVML's reference demands of `answer`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: $crate::handles::Device, answer: *mut $type) -> std::ffi::c_int {
            $crate::call::device(stringify!($name), device, |state, gpu| {
                let answers: fn(&$crate::state::State, &$crate::state::Gpu) -> Result<$type, $crate::abi::Code> = $answer;
                // SAFETY: the caller gives one place of that type.
                unsafe { $crate::abi::put(answer, answers(state, gpu)?) }
            })
        }
    )+};
}

/// Defines calls of the shape `nvmlReturn_t f(nvmlDevice_t, char *buffer, unsigned length)`.
macro_rules! texts {
    ($($name:ident = $answer:expr;)+) => {$(
        /// # Safety
        /// As NVML's reference demands of `buffer`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            device: $crate::handles::Device,
            buffer: *mut std::ffi::c_char,
            length: std::ffi::c_uint,
        ) -> std::ffi::c_int {
            $crate::call::device(stringify!($name), device, |_, gpu| {
                let answers: fn(&$crate::state::Gpu) -> Result<&str, $crate::abi::Code> = $answer;
                // SAFETY: the caller gives `length` bytes.
                unsafe { $crate::abi::put_text(buffer, length, answers(gpu)?) }
            })
        }
    )+};
}

pub(crate) use {texts, values};
