//! Injects the faults of the state file: a call is delayed, hangs, fails, or kills the process.

use std::thread::sleep;
use std::time::Duration;

use crate::abi::Code;
use crate::latency;
use crate::state::{self, Fault, KillTarget, When};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Applies faults before a call has an effect.
pub(crate) fn before(function: &str, device: Option<&str>) -> Result<(), Code> {
    apply(function, device, When::Before)
}

/// Applies the faults of one GPU before a lookup of it has an effect; faults of all GPUs were applied before.
pub(crate) fn before_lookup(function: &str, gpu: &str) -> Result<(), Code> {
    let state = state::current()?;
    let of_gpu = |fault: &Fault| fault.device.as_deref() == Some(gpu);
    for (index, fault) in state.faults.iter().enumerate() {
        if of_gpu(fault) && fault.when == When::Before && applies_to(fault, function, Some(gpu)) {
            inject(fault, index, function, Some(gpu), When::Before)?;
        }
    }
    Ok(())
}

/// Applies faults after a call had its effect, before it returns.
pub(crate) fn after(function: &str, device: Option<&str>) -> Result<(), Code> {
    apply(function, device, When::After)
}

fn apply(function: &str, device: Option<&str>, when: When) -> Result<(), Code> {
    let state = state::current()?;
    if when == When::Before {
        latency::call(&state, unversioned(function));
    }
    for (index, fault) in state.faults.iter().enumerate() {
        if fault.when != when || !applies_to(fault, function, device) {
            continue;
        }
        if inject(fault, index, function, device, when)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Injects a fault; returns whether it replaces the faults after it.
fn inject(
    fault: &Fault,
    index: usize,
    function: &str,
    device: Option<&str>,
    when: When,
) -> Result<bool, Code> {
    if !consume(fault, index)? {
        return Ok(false);
    }
    sleep(Duration::from_millis(fault.delay_ms));
    while fault.hang && hangs(function, device, when) {
        sleep(POLL_INTERVAL);
    }
    if let Some(target) = fault.kill {
        kill(target);
    }
    match fault.code {
        None => Ok(false),
        Some(0) => Ok(true),
        Some(code) => Err(Code(code)),
    }
}

/// Decrements the count of a limited fault. Returns false if no occurrence remains.
fn consume(fault: &Fault, index: usize) -> Result<bool, Code> {
    if fault.times.is_none() {
        return Ok(true);
    }
    let mut consumed = false;
    state::update(|document| {
        let Some(left) = document.pointer_mut(&format!("/faults/{index}/times")) else {
            return false;
        };
        let times = left.as_u64().unwrap_or(0);
        consumed = times > 0;
        *left = times.saturating_sub(1).into();
        consumed
    })?;
    Ok(consumed)
}

fn hangs(function: &str, device: Option<&str>, when: When) -> bool {
    // An unreadable file ends the hang, because nothing else could.
    state::current().is_ok_and(|state| {
        state
            .faults
            .iter()
            .any(|fault| fault.hang && fault.when == when && applies_to(fault, function, device))
    })
}

fn applies_to(fault: &Fault, function: &str, device: Option<&str>) -> bool {
    let named = fault
        .function
        .as_deref()
        .is_none_or(|name| unversioned(name) == unversioned(function));
    named && (fault.device.is_none() || fault.device.as_deref() == device)
}

/// The name without version: a fault for `nvmlDeviceGetMemoryInfo` also applies to `nvmlDeviceGetMemoryInfo_v2`.
fn unversioned(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((stem, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => stem,
        _ => name,
    }
}

/// Kills with SIGKILL: nothing is written or closed, and the call does not return.
fn kill(target: KillTarget) -> ! {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn kill(process: c_int, signal: c_int) -> c_int;
    }
    const SIGKILL: c_int = 9;
    if matches!(target, KillTarget::Agent) {
        let parent = std::os::unix::process::parent_id() as c_int;
        if parent > 1 {
            // SAFETY: the arguments are two numbers.
            unsafe { kill(parent, SIGKILL) };
        }
    }
    loop {
        // SAFETY: the arguments are two numbers; the call does not return on success.
        unsafe { kill(std::process::id() as c_int, SIGKILL) };
    }
}
