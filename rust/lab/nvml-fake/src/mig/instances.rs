//! The state file of MIG instances, and changes of it together with the driver's folders and device nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};

use crate::abi::Code;
use crate::files::{self, CachedFile, LockedFile, lock};
use crate::mig::nodes;
use crate::state::{self, Gpu};

/// By GPU UUID. A GPU without an entry has MIG mode off.
type Layouts = BTreeMap<String, PartitionLayout>;

/// The MIG mode and the instances of one GPU.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct PartitionLayout {
    pub(crate) mode: bool,
    /// The mode after the next reset.
    pub(crate) pending: bool,
    /// Number of compute instances ever created, so that UUIDs are unique.
    #[serde(rename = "made")]
    pub(crate) created: u64,
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

impl PartitionLayout {
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

static CACHE: Mutex<CachedFile<Layouts>> = Mutex::new(CachedFile::new());

/// The current MIG state of all GPUs.
pub(crate) fn all() -> Result<Arc<Layouts>, Code> {
    let path = path()?;
    if path.exists() {
        lock(&CACHE).load(path)
    } else {
        Ok(Arc::default())
    }
}

/// The current MIG state of one GPU.
pub(crate) fn of(gpu: &Gpu) -> Result<PartitionLayout, Code> {
    Ok(all()?.get(&gpu.uuid).cloned().unwrap_or_default())
}

/// Changes the MIG state of a GPU, unless `change` fails.
///
/// Device nodes are created before the instance becomes visible, and removed after it.
pub(crate) fn change<R>(
    gpu: &Gpu,
    change: impl FnOnce(&mut PartitionLayout) -> Result<R, Code>,
) -> Result<R, Code> {
    let held = LockedFile::open(path()?)?;
    let mut enabled_layout: Layouts = held.read()?.unwrap_or_default();
    let layout = enabled_layout.entry(gpu.uuid.clone()).or_default();
    let result = change(layout)?;
    let layout = layout.clone();
    nodes::add(gpu.minor, &layout, state::current()?.access.instances)?;
    held.write(&enabled_layout)?;
    nodes::remove_others(gpu.minor, &layout);
    Ok(result)
}

fn path() -> Result<&'static Path, Code> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| Some(files::state_path()?.with_extension("mig.json")))
        .as_deref()
        .ok_or(Code::DRIVER_NOT_LOADED)
}
