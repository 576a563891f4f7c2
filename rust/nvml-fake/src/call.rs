//! The way of every call: initialised or not, the faults, the handle, the GPU, and no panic across the C border.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{Code, SUCCESS};
use crate::handles::{self, Handle, Target};
use crate::state::{self, Gpu, State};
use crate::{faults, lifecycle};

/// A call about the host.
pub(crate) fn system(function: &str, work: impl FnOnce(&State) -> Result<(), Code>) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        faults::before(function, None)?;
        work(&*state::current()?)?;
        faults::after(function, None)
    })
}

/// A call about one GPU; NOT_SUPPORTED for a MIG device, which most calls know nothing of.
pub(crate) fn device(
    function: &str,
    device: Handle,
    work: impl FnOnce(&State, &Gpu) -> Result<(), Code>,
) -> i32 {
    part(function, device, |state, gpu, target| match target {
        Target::Gpu(_) => work(state, gpu),
        Target::MigDevice(..) => Err(Code::NOT_SUPPORTED),
        Target::GpuInstance(..) | Target::ComputeInstance(..) => Err(Code::INVALID_ARGUMENT),
    })
}

/// A call about a GPU or a part of one; GPU_IS_LOST where it is no longer plugged in.
pub(crate) fn part(
    function: &str,
    handle: Handle,
    work: impl FnOnce(&State, &Gpu, &Target) -> Result<(), Code>,
) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        let target = handles::target(handle)?;
        faults::before(function, Some(target.gpu()))?;
        // The state may have changed while a fault made the call wait.
        let state = state::current()?;
        let gpu = state
            .gpu(target.gpu())
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        work(&state, gpu, &target)?;
        faults::after(function, Some(target.gpu()))
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
        pub unsafe extern "C" fn $name(device: $crate::handles::Handle, answer: *mut $type) -> std::ffi::c_int {
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
            device: $crate::handles::Handle,
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
