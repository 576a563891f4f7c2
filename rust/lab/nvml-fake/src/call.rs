//! The common part of all calls: initialization, faults, handle and GPU lookup, and no panic across the C ABI.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{Code, SUCCESS};
use crate::handles::{self, Handle, Target};
use crate::state::{self, Gpu, State};
use crate::{faults, lifecycle};

/// Runs a call for the host.
pub(crate) fn system(function: &str, work: impl FnOnce(&State) -> Result<(), Code>) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        faults::before(function, None)?;
        work(&*state::current()?)?;
        faults::after(function, None)
    })
}

/// Runs a call for one GPU. NOT_SUPPORTED for a MIG device.
pub(crate) fn device(
    function: &str,
    device: Handle,
    work: impl FnOnce(&State, &Gpu) -> Result<(), Code>,
) -> i32 {
    gpu_or_instance(function, device, |state, gpu, target| match target {
        Target::Gpu(_) => work(state, gpu),
        Target::MigDevice(..) => Err(Code::NOT_SUPPORTED),
        Target::GpuInstance(..) | Target::ComputeInstance(..) => Err(Code::INVALID_ARGUMENT),
    })
}

/// Runs a call for a GPU or an instance of one. GPU_IS_LOST if the GPU is no longer plugged in.
pub(crate) fn gpu_or_instance(
    function: &str,
    handle: Handle,
    work: impl FnOnce(&State, &Gpu, &Target) -> Result<(), Code>,
) -> i32 {
    guarded(|| {
        lifecycle::check()?;
        let target = handles::target(handle)?;
        faults::before(function, Some(target.gpu()))?;
        // The state may have changed while a fault delayed the call.
        let state = state::current()?;
        let gpu = state
            .gpu(target.gpu())
            .filter(|gpu| gpu.present)
            .ok_or(Code::GPU_IS_LOST)?;
        work(&state, gpu, &target)?;
        faults::after(function, Some(target.gpu()))
    })
}

/// Converts a result to a return code, and a panic to UNKNOWN.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Code>) -> i32 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(Code(code))) => code,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Defines functions `nvmlReturn_t f(nvmlDevice_t, T *result)`, each with the value for a GPU.
macro_rules! values {
    ($($name:ident: $type:ty = $result:expr;)+) => {$(
        /// # Safety
        /// As NVML's reference requires for `result`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: $crate::handles::Handle, result: *mut $type) -> std::ffi::c_int {
            $crate::call::device(stringify!($name), device, |state, gpu| {
                let answers: fn(&$crate::state::State, &$crate::state::Gpu) -> Result<$type, $crate::abi::Code> = $result;
                // SAFETY: the caller provides one place of that type.
                unsafe { $crate::abi::write_value(result, answers(state, gpu)?) }
            })
        }
    )+};
}

/// Defines functions `nvmlReturn_t f(nvmlDevice_t, char *buffer, unsigned length)`.
macro_rules! texts {
    ($($name:ident = $result:expr;)+) => {$(
        /// # Safety
        /// As NVML's reference requires for `buffer`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            device: $crate::handles::Handle,
            buffer: *mut std::ffi::c_char,
            length: std::ffi::c_uint,
        ) -> std::ffi::c_int {
            $crate::call::device(stringify!($name), device, |_, gpu| {
                let answers: fn(&$crate::state::Gpu) -> Result<&str, $crate::abi::Code> = $result;
                // SAFETY: the caller provides `length` bytes.
                unsafe { $crate::abi::write_text(buffer, length, answers(gpu)?) }
            })
        }
    )+};
}

pub(crate) use {texts, values};
