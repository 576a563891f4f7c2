//! The files that the library keeps its state in: where they are, following their changes, and changing them so that
//! every process sees whole contents and none loses another's change.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::abi::Code;

/// A file's content as it was when it last could be read.
#[derive(Debug)]
pub(crate) struct Followed<T> {
    stamp: Option<(u64, i64, i64, u64)>,
    value: Option<Arc<T>>,
}

impl<T: DeserializeOwned> Followed<T> {
    pub(crate) const fn new() -> Self {
        Self {
            stamp: None,
            value: None,
        }
    }

    /// Reads the file again where it has changed. A version that cannot be read leaves the last good one in force.
    ///
    /// DRIVER_NOT_LOADED where there has never been a file, UNKNOWN where it could never be read.
    pub(crate) fn look(&mut self, path: &Path) -> Result<Arc<T>, Code> {
        let stamp = fs::metadata(path)
            .ok()
            .map(|data| (data.ino(), data.mtime(), data.mtime_nsec(), data.size()));
        if stamp.is_some() && stamp != self.stamp {
            self.stamp = stamp;
            match read(path) {
                Ok(value) => self.value = Some(Arc::new(value)),
                // Nobody but whoever edits the file by hand can see this; it is told once for each broken version.
                Err(reason) => eprintln!(
                    "simulated NVML: {}: {reason}; the last good state stays",
                    path.display()
                ),
            }
        }
        match (&self.value, stamp) {
            (Some(value), _) => Ok(Arc::clone(value)),
            (None, None) => Err(Code::DRIVER_NOT_LOADED),
            (None, Some(_)) => Err(Code::UNKNOWN),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// Holds a file's lock while it is read, changed and replaced. The simulator's own commands take the same lock.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    path: &'a Path,
    _lock: FileLock,
}

impl<'a> Held<'a> {
    pub(crate) fn take(path: &'a Path) -> Result<Self, Code> {
        let _lock = FileLock::take(&path.with_extension("lock"))?;
        Ok(Self { path, _lock })
    }

    /// None where there is no such file.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, Code> {
        if !self.path.exists() {
            return Ok(None);
        }
        read(self.path).map(Some).map_err(|_| Code::UNKNOWN)
    }

    pub(crate) fn write<T: Serialize>(&self, content: &T) -> Result<(), Code> {
        let failed = |_| Code::OPERATING_SYSTEM;
        let text = serde_json::to_vec_pretty(content).map_err(|_| Code::UNKNOWN)?;
        let temporary = self
            .path
            .with_extension(format!("json.{}", std::process::id()));
        fs::write(&temporary, text).map_err(failed)?;
        fs::rename(&temporary, self.path).map_err(failed)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held left nothing half-changed: every holder replaces whole values.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `DRA_AGENT_NVML_STATE`, else `nvml.json` beside this library.
pub(crate) fn state_path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("DRA_AGENT_NVML_STATE") {
        Some(path) => Some(PathBuf::from(path)),
        None => Some(library_path()?.with_file_name("nvml.json")),
    })
    .as_deref()
}

/// The simulated host whose `lib` folder this library lies in; None where it lies somewhere else.
pub(crate) fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = library_path()?.parent()?.parent()?.to_owned();
        root.join("proc/driver/nvidia").is_dir().then_some(root)
    })
    .as_deref()
}

/// Where the dynamic loader took this library from, so that several simulated hosts can live in one process.
fn library_path() -> Option<PathBuf> {
    static ANCHOR: u8 = 0;
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null(),
        symbol: std::ptr::null(),
        address: std::ptr::null(),
    };
    // SAFETY: the address is one of this library's own, and `info` outlives the call.
    let found = unsafe { dladdr((&raw const ANCHOR).cast(), &raw mut info) };
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
#[derive(Debug)]
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
