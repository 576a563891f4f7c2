//! Faults that the state file orders: a call waits, hangs until it is told not to, fails, or ends the whole process.

use std::thread::sleep;
use std::time::Duration;

use crate::abi::Code;
use crate::state::{self, Fault, When, Whom};

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Does what the state orders for a call that is about to be made, then lets it go on or fail.
pub(crate) fn before(function: &str, device: Option<&str>) -> Result<(), Code> {
    pass(function, device, When::Before)
}

/// Does what the state orders for a call that has been made, and whose caller has not been told.
pub(crate) fn after(function: &str, device: Option<&str>) -> Result<(), Code> {
    pass(function, device, When::After)
}

fn pass(function: &str, device: Option<&str>, when: When) -> Result<(), Code> {
    let state = state::current()?;
    for (index, fault) in state.faults.iter().enumerate() {
        if fault.when != when || !concerns(fault, function, device) || !take(fault, index)? {
            continue;
        }
        sleep(Duration::from_millis(fault.delay_ms));
        while fault.hang && hangs(function, device, when) {
            sleep(LOOK_AGAIN);
        }
        if let Some(whom) = fault.kill {
            kill(whom);
        }
        if let Some(code) = fault.code {
            return if code == 0 { Ok(()) } else { Err(Code(code)) };
        }
    }
    Ok(())
}

/// Counts a fault that happens a number of times only; false where other calls have used it up.
fn take(fault: &Fault, index: usize) -> Result<bool, Code> {
    if fault.times.is_none() {
        return Ok(true);
    }
    let mut taken = false;
    state::update(|document| {
        let Some(left) = document.pointer_mut(&format!("/faults/{index}/times")) else {
            return false;
        };
        let times = left.as_u64().unwrap_or(0);
        taken = times > 0;
        *left = times.saturating_sub(1).into();
        taken
    })?;
    Ok(taken)
}

fn hangs(function: &str, device: Option<&str>, when: When) -> bool {
    // Where the file can no longer be read, nothing could ever end the hang.
    state::current().is_ok_and(|state| {
        state
            .faults
            .iter()
            .any(|fault| fault.hang && fault.when == when && concerns(fault, function, device))
    })
}

fn concerns(fault: &Fault, function: &str, device: Option<&str>) -> bool {
    let named = fault
        .function
        .as_deref()
        .is_none_or(|name| unversioned(name) == unversioned(function));
    named && (fault.device.is_none() || fault.device.as_deref() == device)
}

/// `nvmlDeviceGetMemoryInfo_v2` and `nvmlDeviceGetMemoryInfo` are one function to whoever wants it to fail.
fn unversioned(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((stem, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => stem,
        _ => name,
    }
}

/// As `kill -9` does it: nothing is written, closed or answered any more.
fn kill(whom: Whom) -> ! {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn kill(process: c_int, signal: c_int) -> c_int;
    }
    const SIGKILL: c_int = 9;
    if matches!(whom, Whom::Agent) {
        let parent = std::os::unix::process::parent_id() as c_int;
        if parent > 1 {
            // SAFETY: it takes two numbers.
            unsafe { kill(parent, SIGKILL) };
        }
    }
    loop {
        // SAFETY: it takes two numbers, and does not return where it succeeds.
        unsafe { kill(std::process::id() as c_int, SIGKILL) };
    }
}
