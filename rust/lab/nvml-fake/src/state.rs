//! The state file: GPUs, their condition, and injected faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::abi::{Code, NO_INSTANCE};
use crate::files::{self, CachedFile, LockedFile, lock};
use crate::load::{self, Load};

#[derive(Debug, Deserialize)]
pub(crate) struct State {
    /// None: no driver is loaded, and nvmlInit fails.
    pub(crate) driver: Option<Driver>,
    pub(crate) devices: Vec<Gpu>,
    #[serde(default)]
    pub(crate) faults: Vec<Fault>,
    #[serde(default)]
    pub(crate) events: Vec<Event>,
    #[serde(default)]
    pub(crate) conditions: BTreeMap<String, Condition>,
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    #[serde(default)]
    pub(crate) latency: Latency,
    /// By UUID and control group.
    #[serde(default)]
    pub(crate) memory_limits: BTreeMap<String, BTreeMap<String, MemoryLimit>>,
    #[serde(default)]
    pub(crate) loads: Vec<Load>,
    #[serde(default)]
    pub(crate) access: Access,
}

/// Permissions of the calling process with the driver.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Access {
    /// Whether it has CAP_SYS_ADMIN.
    pub(crate) admin: bool,
    /// Whether it can open the capability `mig/config`.
    pub(crate) config: bool,
    /// Whether it can open the capability `mig/monitor`.
    pub(crate) monitor: bool,
    /// Whether it sees the capabilities of instances below /proc/driver/nvidia.
    pub(crate) instances: bool,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            admin: true,
            config: true,
            monitor: true,
            instances: true,
        }
    }
}

/// How long calls take.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    /// nvmlInit, for each GPU.
    pub(crate) init_ms_per_gpu: u64,
    /// The first lookup of a GPU in a process, one GPU after the other, unless persistence mode is on.
    pub(crate) gpu_start_ms: u64,
    /// Every call of a function, by its name without version.
    pub(crate) calls_ms: BTreeMap<String, u64>,
}

/// The memory limit of a control group on a GPU, in bytes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct MemoryLimit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
    /// Whether the group existed as a folder when the limit was set. The limit is then valid while the folder exists.
    pub(crate) folder: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Driver {
    pub(crate) version: String,
    pub(crate) nvml_version: String,
    pub(crate) cuda: i32,
    /// Whether it describes profiles in their versioned form only in MIG mode.
    #[serde(default)]
    pub(crate) profiles_need_mig: bool,
    /// Determines the numbers of MIG instances, together with the UUID of the GPU.
    #[serde(default)]
    pub(crate) id_seed: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pci {
    pub(crate) address: String,
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Link {
    pub(crate) generation: u32,
    pub(crate) width: u32,
    pub(crate) max_generation: u32,
    pub(crate) max_width: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NvLink {
    pub(crate) remote: Pci,
    pub(crate) kind: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct MigProfile {
    pub(crate) profile: u32,
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) slices: u32,
    #[serde(rename = "most")]
    pub(crate) max_instances: u32,
    pub(crate) memory_mib: u64,
    pub(crate) multiprocessors: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpeg: u32,
    pub(crate) ofa: u32,
    pub(crate) placements: Vec<(u32, u32)>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) present: bool,
    pub(crate) uuid: String,
    pub(crate) pci: Pci,
    pub(crate) minor: u32,
    pub(crate) name: String,
    pub(crate) brand: u32,
    pub(crate) architecture: u32,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) serial: String,
    pub(crate) vbios: String,
    pub(crate) part_number: String,
    pub(crate) memory_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) bar1_bytes: u64,
    pub(crate) cores: u32,
    pub(crate) power_limit_watts: u32,
    pub(crate) ecc: bool,
    pub(crate) link: Link,
    pub(crate) numa_node: i32,
    pub(crate) cpus: Vec<u64>,
    /// Host bridge, then addresses down to the GPU.
    pub(crate) path: Vec<String>,
    pub(crate) nvlinks: Vec<NvLink>,
    pub(crate) nvlink_slots: u32,
    pub(crate) fabric: Option<(String, u32)>,
    pub(crate) mig: Vec<MigProfile>,
    /// nvmlGpuVirtualizationMode_t; 2 is a vGPU in its guest.
    #[serde(default)]
    pub(crate) virtualization: u32,
}

/// A fault of calls. Without a function or device it applies to all.
#[derive(Debug, Deserialize)]
pub(crate) struct Fault {
    pub(crate) function: Option<String>,
    pub(crate) device: Option<String>,
    #[serde(default)]
    pub(crate) delay_ms: u64,
    #[serde(default)]
    pub(crate) hang: bool,
    pub(crate) code: Option<i32>,
    pub(crate) kill: Option<KillTarget>,
    /// The number of remaining occurrences; unlimited if `None`.
    #[serde(default)]
    pub(crate) times: Option<u64>,
    #[serde(default)]
    pub(crate) when: When,
}

/// The process to kill with SIGKILL.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KillTarget {
    /// The calling process.
    Library,
    /// The calling process and its parent: an agent loads the library in a child process.
    Agent,
}

/// Whether a fault occurs before or after the effect of a call.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum When {
    #[default]
    Before,
    After,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    pub(crate) sequence: u64,
    pub(crate) device: String,
    pub(crate) kind: u64,
    pub(crate) data: u64,
    /// The MIG instance; NO_INSTANCE for the whole GPU.
    #[serde(default = "no_instance")]
    pub(crate) gpu_instance: u32,
    #[serde(default = "no_instance")]
    pub(crate) compute_instance: u32,
}

/// The changing properties of a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    pub(crate) persistence_mode: bool,
    pub(crate) compute_mode: u32,
    pub(crate) temperature: u32,
    pub(crate) power_milliwatts: u32,
    pub(crate) utilization: (u32, u32),
    /// Since the driver was loaded.
    pub(crate) energy_millijoules: u64,
    pub(crate) sm_clock_mhz: u32,
    pub(crate) memory_clock_mhz: u32,
    /// Bits of nvmlClocksEventReason*.
    pub(crate) clock_event_reasons: u64,
    pub(crate) ecc_corrected: u64,
    pub(crate) ecc_uncorrected: u64,
    /// Transmitted and received by all links, like those of PCIe.
    pub(crate) nvlink_kibibytes: (u64, u64),
    pub(crate) pcie_bytes: (u64, u64),
    /// Corrected, uncorrected, pending, failed.
    pub(crate) remapped_rows: (u32, u32, u32, u32),
    /// nvmlDeviceGpuRecoveryAction_t.
    pub(crate) recovery_action: u32,
    /// None: the registration is completed, if the GPU has a fabric.
    pub(crate) fabric: Option<FabricCondition>,
    /// Numbers of NVLinks that are down.
    pub(crate) nvlinks_down: Vec<u32>,
    /// Return codes and values of metrics of GPM by their number, in place of those that are played; None: not a number.
    pub(crate) gpm: BTreeMap<u32, (i32, Option<f64>)>,
}

/// The registration of a GPU with its NVLink fabric; values as in nvmlGpuFabricInfo_v3_t.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct FabricCondition {
    pub(crate) state: u32,
    pub(crate) status: u32,
    pub(crate) health_mask: u32,
    pub(crate) health_summary: u8,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            persistence_mode: true,
            compute_mode: 0,
            temperature: 34,
            power_milliwatts: 71_000,
            utilization: (0, 0),
            energy_millijoules: 0,
            sm_clock_mhz: 345,
            memory_clock_mhz: 1593,
            clock_event_reasons: 1,
            ecc_corrected: 0,
            ecc_uncorrected: 0,
            nvlink_kibibytes: (0, 0),
            pcie_bytes: (0, 0),
            remapped_rows: (0, 0, 0, 0),
            recovery_action: 0,
            fabric: None,
            nvlinks_down: Vec::new(),
            gpm: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Process {
    pub(crate) device: String,
    pub(crate) pid: u32,
    pub(crate) memory_bytes: u64,
    /// The MIG instance that the process uses; NO_INSTANCE for the whole GPU.
    #[serde(default = "no_instance")]
    pub(crate) gpu_instance: u32,
    #[serde(default = "no_instance")]
    pub(crate) compute_instance: u32,
    /// The control group, as in memory limits.
    pub(crate) cgroup: Option<String>,
    /// Average of the GPU and of its memory in percent; (0, 0) has no sample.
    #[serde(default)]
    pub(crate) utilization: (u32, u32),
    /// When the driver took the sample, in microseconds since the epoch; None: at the time of the call.
    pub(crate) sampled_at_us: Option<u64>,
}

fn no_instance() -> u32 {
    NO_INSTANCE
}

impl State {
    pub(crate) fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        self.devices.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// The GPUs that are plugged in, in NVML's order: by PCI address.
    pub(crate) fn present(&self) -> Vec<&Gpu> {
        let mut gpus: Vec<_> = self.devices.iter().filter(|gpu| gpu.present).collect();
        gpus.sort_by_key(|gpu| address_parts(&gpu.pci.address));
        gpus
    }

    pub(crate) fn id_seed(&self) -> u64 {
        self.driver.as_ref().map_or(0, |driver| driver.id_seed)
    }

    pub(crate) fn condition(&self, gpu: &Gpu) -> Condition {
        let mut condition = self.conditions.get(&gpu.uuid).cloned().unwrap_or_default();
        if let Some(load) = load::of_gpu(&self.loads, &gpu.uuid) {
            load.play(&mut condition);
        }
        condition
    }

    pub(crate) fn processes(&self, gpu: &Gpu) -> impl Iterator<Item = &Process> {
        self.processes
            .iter()
            .filter(|process| process.device == gpu.uuid)
    }
}

impl Driver {
    /// The branch: 570 of 570.124.06.
    pub(crate) fn branch(&self) -> u32 {
        let branch = self.version.split('.').next();
        branch.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Domain, bus, device and function of `0000:1b:00.0`, in any case and with any number of domain digits.
pub(crate) fn address_parts(address: &str) -> Option<(u32, u32, u32, u32)> {
    let (rest, function) = address.rsplit_once('.')?;
    let mut fields = rest
        .rsplit(':')
        .map(|field| u32::from_str_radix(field, 16).ok());
    let device = fields.next()??;
    let bus = fields.next()??;
    let domain = fields.next().unwrap_or(Some(0))?;
    Some((domain, bus, device, function.parse().ok()?))
}

static CACHE: Mutex<CachedFile<State>> = Mutex::new(CachedFile::new());

/// The current state, or the last readable one.
pub(crate) fn current() -> Result<Arc<State>, Code> {
    lock(&CACHE).load(files::state_path().ok_or(Code::DRIVER_NOT_LOADED)?)
}

/// Changes the file: `change` edits its JSON. The file is written only if it returns true.
pub(crate) fn update(change: impl FnOnce(&mut serde_json::Value) -> bool) -> Result<(), Code> {
    let held = LockedFile::open(files::state_path().ok_or(Code::DRIVER_NOT_LOADED)?)?;
    let mut document = held.read()?.ok_or(Code::OPERATING_SYSTEM)?;
    if change(&mut document) {
        held.write(&document)?;
    }
    Ok(())
}
