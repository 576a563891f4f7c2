//! The file of what GPUs are divided into, and changing it together with the driver's folders and device nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};

use crate::abi::Code;
use crate::files::{self, Followed, Held, lock};
use crate::mig::nodes;
use crate::state::Gpu;

/// By the GPU's UUID; one that is not named has its mode off.
type Divided = BTreeMap<String, Division>;

/// One GPU.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Division {
    pub(crate) mode: bool,
    /// What the mode becomes at the next reset.
    pub(crate) pending: bool,
    /// How many compute instances have ever been made: none gets the UUID of an earlier one.
    pub(crate) made: u64,
    pub(crate) gpu_instances: Vec<GpuInstance>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct GpuInstance {
    pub(crate) id: u32,
    pub(crate) profile: u32,
    /// In memory slices.
    pub(crate) start: u32,
    pub(crate) size: u32,
    pub(crate) compute_instances: Vec<ComputeInstance>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ComputeInstance {
    pub(crate) id: u32,
    pub(crate) profile: u32,
    /// In compute slices of the GPU instance.
    pub(crate) start: u32,
    pub(crate) size: u32,
    pub(crate) uuid: String,
}

impl Division {
    /// INVALID_ARGUMENT where the instance has been destroyed.
    pub(crate) fn gpu_instance(&self, id: u32) -> Result<&GpuInstance, Code> {
        self.gpu_instances
            .iter()
            .find(|instance| instance.id == id)
            .ok_or(Code::INVALID_ARGUMENT)
    }

    pub(crate) fn gpu_instance_mut(&mut self, id: u32) -> Result<&mut GpuInstance, Code> {
        self.gpu_instances
            .iter_mut()
            .find(|instance| instance.id == id)
            .ok_or(Code::INVALID_ARGUMENT)
    }
}

impl GpuInstance {
    /// INVALID_ARGUMENT where the instance has been destroyed.
    pub(crate) fn compute_instance(&self, id: u32) -> Result<&ComputeInstance, Code> {
        self.compute_instances
            .iter()
            .find(|instance| instance.id == id)
            .ok_or(Code::INVALID_ARGUMENT)
    }
}

static FOLLOWED: Mutex<Followed<Divided>> = Mutex::new(Followed::new());

/// What all GPUs are divided into now.
pub(crate) fn all() -> Result<Arc<Divided>, Code> {
    let path = path()?;
    if path.exists() {
        lock(&FOLLOWED).look(path)
    } else {
        Ok(Arc::default())
    }
}

/// What one GPU is divided into now.
pub(crate) fn of(gpu: &Gpu) -> Result<Division, Code> {
    Ok(all()?.get(&gpu.uuid).cloned().unwrap_or_default())
}

/// Changes what a GPU is divided into; nothing is changed where `change` fails.
///
/// Whoever can see an instance can use it: its nodes are there before it is, and go after it.
pub(crate) fn change<R>(
    gpu: &Gpu,
    change: impl FnOnce(&mut Division) -> Result<R, Code>,
) -> Result<R, Code> {
    let held = Held::take(path()?)?;
    let mut divided: Divided = held.read()?.unwrap_or_default();
    let division = divided.entry(gpu.uuid.clone()).or_default();
    let result = change(division)?;
    let division = division.clone();
    nodes::add(gpu.minor, &division)?;
    held.write(&divided)?;
    nodes::remove_others(gpu.minor, &division);
    Ok(result)
}

fn path() -> Result<&'static Path, Code> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| Some(files::state_path()?.with_extension("mig.json")))
        .as_deref()
        .ok_or(Code::DRIVER_NOT_LOADED)
}
