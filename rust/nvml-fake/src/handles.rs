//! Handles of GPUs and of what they are divided into: numbers that callers hold as pointers and give back. They are never
//! followed, so a wrong one is an INVALID_ARGUMENT and nothing worse; one of an unplugged GPU stays known.
//!
//! A handle means an instance by its number, as with a real driver: when the instance is destroyed and another one gets
//! its number, an old handle means that one.

use std::sync::Mutex;

use crate::abi::Code;
use crate::files::lock;

/// nvmlDevice_t, nvmlGpuInstance_t and nvmlComputeInstance_t.
pub(crate) type Handle = usize;

/// What a handle means; GPUs by UUID, instances by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Gpu(String),
    GpuInstance(String, u32),
    ComputeInstance(String, u32, u32),
    /// A compute instance as the device that CUDA sees.
    MigDevice(String, u32, u32),
}

impl Target {
    /// The GPU that it is, or is a part of.
    pub(crate) fn gpu(&self) -> &str {
        match self {
            Self::Gpu(uuid)
            | Self::GpuInstance(uuid, _)
            | Self::ComputeInstance(uuid, _, _)
            | Self::MigDevice(uuid, _, _) => uuid,
        }
    }
}

static KNOWN: Mutex<Vec<Target>> = Mutex::new(Vec::new());

// Away from 0 and from anything that a caller could count up from it.
const BASE: usize = 0x4E56_0000;
const STEP: usize = 16;

/// The handle of a GPU: the same at every call.
pub(crate) fn of(uuid: &str) -> Handle {
    of_target(Target::Gpu(uuid.to_owned()))
}

/// The handle of anything: the same at every call.
pub(crate) fn of_target(target: Target) -> Handle {
    let mut known = lock(&KNOWN);
    let index = known
        .iter()
        .position(|other| *other == target)
        .unwrap_or_else(|| {
            known.push(target);
            known.len() - 1
        });
    BASE + index * STEP
}

/// What a handle means.
pub(crate) fn target(handle: Handle) -> Result<Target, Code> {
    let offset = handle.checked_sub(BASE).ok_or(Code::INVALID_ARGUMENT)?;
    if !offset.is_multiple_of(STEP) {
        return Err(Code::INVALID_ARGUMENT);
    }
    lock(&KNOWN)
        .get(offset / STEP)
        .cloned()
        .ok_or(Code::INVALID_ARGUMENT)
}
