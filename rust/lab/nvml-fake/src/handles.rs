//! Handles of GPUs and MIG instances: numbers that callers hold as pointers. They are never dereferenced, so an invalid
//! handle only causes INVALID_ARGUMENT. The handle of an unplugged GPU stays valid.
//!
//! As with a real driver, a handle refers to an instance by its number. If the instance is destroyed and another one gets
//! its number, an old handle refers to the new one.

use std::sync::Mutex;

use crate::abi::Code;
use crate::files::lock;

/// nvmlDevice_t, nvmlGpuInstance_t and nvmlComputeInstance_t.
pub(crate) type Handle = usize;

/// The target of a handle; GPUs by UUID, instances by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Gpu(String),
    GpuInstance(String, u32),
    ComputeInstance(String, u32, u32),
    /// A compute instance as a CUDA device.
    MigDevice(String, u32, u32),
}

impl Target {
    /// The UUID of the GPU, or of the instance's GPU.
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

// Not close to 0, so that small numbers are invalid handles.
const BASE: usize = 0x4E56_0000;
const STEP: usize = 16;

/// The handle of a GPU; the same for every call.
pub(crate) fn of(uuid: &str) -> Handle {
    of_target(Target::Gpu(uuid.to_owned()))
}

/// The handle of a target; the same for every call.
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

/// The target of a handle.
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
