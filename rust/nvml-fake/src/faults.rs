//! Faults that the state file orders: a call waits, hangs until it is told not to, or fails.

use std::thread::sleep;
use std::time::Duration;

use crate::abi::Code;
use crate::state::{self, Fault, State};

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Does what the state orders for a call, then lets it go on or fail.
pub(crate) fn pass(state: &State, function: &str, device: Option<&str>) -> Result<(), Code> {
    for fault in state
        .faults
        .iter()
        .filter(|fault| concerns(fault, function, device))
    {
        sleep(Duration::from_millis(fault.delay_ms));
        while fault.hang && hangs(function, device) {
            sleep(LOOK_AGAIN);
        }
        if let Some(code) = fault.code {
            return if code == 0 { Ok(()) } else { Err(Code(code)) };
        }
    }
    Ok(())
}

fn hangs(function: &str, device: Option<&str>) -> bool {
    // Where the file can no longer be read, nothing could ever end the hang.
    state::current().is_ok_and(|state| {
        state
            .faults
            .iter()
            .any(|fault| fault.hang && concerns(fault, function, device))
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
