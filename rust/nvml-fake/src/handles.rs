//! Handles of devices: numbers that callers hold as pointers and give back. They are never followed, so a wrong one is
//! an INVALID_ARGUMENT and nothing worse; one of an unplugged GPU stays known.

use std::sync::Mutex;

use crate::abi::Code;
use crate::state::lock;

/// nvmlDevice_t.
pub(crate) type Device = usize;

static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

// Away from 0 and from anything that a caller could count up from it.
const BASE: usize = 0x4E56_0000;
const STEP: usize = 16;

/// The handle of a GPU: the same at every call.
pub(crate) fn of(uuid: &str) -> Device {
    let mut known = lock(&KNOWN);
    let index = known
        .iter()
        .position(|name| name == uuid)
        .unwrap_or_else(|| {
            known.push(uuid.to_owned());
            known.len() - 1
        });
    BASE + index * STEP
}

/// Which GPU a handle means.
pub(crate) fn uuid(device: Device) -> Result<String, Code> {
    let offset = device.checked_sub(BASE).ok_or(Code::INVALID_ARGUMENT)?;
    if !offset.is_multiple_of(STEP) {
        return Err(Code::INVALID_ARGUMENT);
    }
    lock(&KNOWN)
        .get(offset / STEP)
        .cloned()
        .ok_or(Code::INVALID_ARGUMENT)
}
