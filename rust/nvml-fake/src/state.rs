//! The state file: its model, where it is, and reading it again when it has changed. A file that cannot be read leaves
//! the last good state in force.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use serde::Deserialize;

use crate::abi::Code;

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
}

#[derive(Debug, Deserialize)]
pub(crate) struct Driver {
    pub(crate) version: String,
    pub(crate) nvml_version: String,
    pub(crate) cuda: i32,
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
    pub(crate) most: u32,
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
}

/// What a call does instead of its work; no function or device means every one.
#[derive(Debug, Deserialize)]
pub(crate) struct Fault {
    pub(crate) function: Option<String>,
    pub(crate) device: Option<String>,
    #[serde(default)]
    pub(crate) delay_ms: u64,
    #[serde(default)]
    pub(crate) hang: bool,
    pub(crate) code: Option<i32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    pub(crate) sequence: u64,
    pub(crate) device: String,
    pub(crate) kind: u64,
    pub(crate) data: u64,
}

/// What changes about a GPU while it runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    pub(crate) persistence_mode: bool,
    pub(crate) compute_mode: u32,
    pub(crate) temperature: u32,
    pub(crate) power_milliwatts: u32,
    pub(crate) utilization: (u32, u32),
    pub(crate) ecc_corrected: u64,
    pub(crate) ecc_uncorrected: u64,
    /// Corrected, uncorrected, pending, failed.
    pub(crate) remapped_rows: (u32, u32, u32, u32),
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            persistence_mode: true,
            compute_mode: 0,
            temperature: 34,
            power_milliwatts: 71_000,
            utilization: (0, 0),
            ecc_corrected: 0,
            ecc_uncorrected: 0,
            remapped_rows: (0, 0, 0, 0),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Process {
    pub(crate) device: String,
    pub(crate) pid: u32,
    pub(crate) memory_bytes: u64,
}

impl State {
    pub(crate) fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        self.devices.iter().find(|gpu| gpu.uuid == uuid)
    }

    /// GPUs that are plugged in, in NVML's order, which is that of the PCI addresses.
    pub(crate) fn present(&self) -> Vec<&Gpu> {
        let mut gpus: Vec<_> = self.devices.iter().filter(|gpu| gpu.present).collect();
        gpus.sort_by_key(|gpu| address_parts(&gpu.pci.address));
        gpus
    }

    pub(crate) fn condition(&self, gpu: &Gpu) -> Condition {
        self.conditions.get(&gpu.uuid).cloned().unwrap_or_default()
    }

    pub(crate) fn processes(&self, gpu: &Gpu) -> impl Iterator<Item = &Process> {
        self.processes
            .iter()
            .filter(|process| process.device == gpu.uuid)
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

#[derive(Default)]
struct Cache {
    stamp: Option<(u64, i64, i64, u64)>,
    state: Option<Arc<State>>,
}

static CACHE: Mutex<Cache> = Mutex::new(Cache {
    stamp: None,
    state: None,
});

/// The state as the file has it now, or had it last when it could be read.
///
/// DRIVER_NOT_LOADED where there is no file, UNKNOWN where it could never be read.
pub(crate) fn current() -> Result<Arc<State>, Code> {
    let path = path().ok_or(Code::DRIVER_NOT_LOADED)?;
    let mut cache = lock(&CACHE);
    let stamp = fs::metadata(path)
        .ok()
        .map(|data| (data.ino(), data.mtime(), data.mtime_nsec(), data.size()));
    if stamp.is_some() && stamp != cache.stamp {
        cache.stamp = stamp;
        match read(path) {
            Ok(state) => cache.state = Some(Arc::new(state)),
            // Nobody but whoever edits the file by hand can see this; it is told once for each broken version.
            Err(reason) => eprintln!(
                "simulated NVML: {}: {reason}; the last good state stays",
                path.display()
            ),
        }
    }
    match (&cache.state, stamp) {
        (Some(state), _) => Ok(Arc::clone(state)),
        (None, None) => Err(Code::DRIVER_NOT_LOADED),
        (None, Some(_)) => Err(Code::UNKNOWN),
    }
}

/// Changes the file: `change` edits the JSON under the lock that the simulator's own commands take too.
pub(crate) fn update(change: impl FnOnce(&mut serde_json::Value)) -> Result<(), Code> {
    let path = path().ok_or(Code::DRIVER_NOT_LOADED)?;
    let _locked = FileLock::take(&path.with_extension("lock"))?;
    let failed = |_| Code::OPERATING_SYSTEM;
    let mut document =
        serde_json::from_slice(&fs::read(path).map_err(failed)?).map_err(|_| Code::UNKNOWN)?;
    change(&mut document);
    let text = serde_json::to_vec_pretty(&document).map_err(|_| Code::UNKNOWN)?;
    let temporary = path.with_extension(format!("json.{}", std::process::id()));
    fs::write(&temporary, text).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held left nothing half-changed: every holder replaces whole values.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn read(path: &Path) -> Result<State, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// `DRA_AGENT_NVML_STATE`, else `nvml.json` beside this library.
fn path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("DRA_AGENT_NVML_STATE") {
        Some(path) => Some(PathBuf::from(path)),
        None => Some(library_path()?.with_file_name("nvml.json")),
    })
    .as_deref()
}

/// Where the dynamic loader took this library from, so that several simulated hosts can live in one process.
fn library_path() -> Option<PathBuf> {
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null(),
        symbol: std::ptr::null(),
        address: std::ptr::null(),
    };
    // SAFETY: the address is one of this library's own, and `info` outlives the call.
    let found = unsafe { dladdr((&raw const CACHE).cast(), &raw mut info) };
    if found == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: dladdr gave a NUL-terminated name that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.file) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Dl_info of dlfcn.h.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *const c_void,
    symbol: *const c_char,
    address: *const c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
    fn flock(descriptor: c_int, operation: c_int) -> c_int;
}

/// An exclusive flock(2), held while the value lives.
struct FileLock(#[allow(dead_code, reason = "closing the file lets go of the lock")] fs::File);

impl FileLock {
    fn take(path: &Path) -> Result<Self, Code> {
        use std::os::fd::AsRawFd;
        const EXCLUSIVE: c_int = 2;
        let failed = |_| Code::OPERATING_SYSTEM;
        let file = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(failed)?;
        // SAFETY: the descriptor is open.
        if unsafe { flock(file.as_raw_fd(), EXCLUSIVE) } != 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        Ok(Self(file))
    }
}
