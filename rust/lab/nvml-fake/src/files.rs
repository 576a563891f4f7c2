//! State files of the library: paths, caching, and atomic changes under a lock, so that no process reads a partial file
//! or overwrites a change of another one.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::abi::Code;

/// A cached file with the last readable content.
#[derive(Debug)]
pub(crate) struct CachedFile<T> {
    stamp: Option<(u64, i64, i64, u64)>,
    value: Option<Arc<T>>,
}

impl<T: DeserializeOwned> CachedFile<T> {
    pub(crate) const fn new() -> Self {
        Self {
            stamp: None,
            value: None,
        }
    }

    /// Reads the file if it changed. If the new version is unreadable, returns the last readable one.
    ///
    /// # Errors
    ///
    /// DRIVER_NOT_LOADED if the file never existed, UNKNOWN if it was never readable.
    pub(crate) fn load(&mut self, path: &Path) -> Result<Arc<T>, Code> {
        let stamp = fs::metadata(path)
            .ok()
            .map(|data| (data.ino(), data.mtime(), data.mtime_nsec(), data.size()));
        if stamp.is_some() && stamp != self.stamp {
            self.stamp = stamp;
            match read(path) {
                Ok(value) => self.value = Some(Arc::new(value)),
                // Only a manual edit can cause this. Reported once for each unreadable version.
                Err(reason) => eprintln!(
                    "simulated NVML: {}: {reason}; the last readable state stays in effect",
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

/// A locked file, to read, change and replace it. The commands of the simulator use the same lock.
#[derive(Debug)]
pub(crate) struct LockedFile<'a> {
    path: &'a Path,
    _lock: FileLock,
}

impl<'a> LockedFile<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self, Code> {
        let _lock = FileLock::acquire(&path.with_extension("lock"))?;
        Ok(Self { path, _lock })
    }

    /// The content, or `None` if the file does not exist.
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
    // A panic leaves no partial change, because every holder replaces whole values.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `DRA_AGENT_NVML_STATE`, or `nvml.json` next to the library; below a driver root, that is a link to the host's.
pub(crate) fn state_path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("DRA_AGENT_NVML_STATE") {
        Some(path) => Some(PathBuf::from(path)),
        None => state_next_to_library(),
    })
    .as_deref()
}

fn state_next_to_library() -> Option<PathBuf> {
    let path = library_path()?.with_file_name("nvml.json");
    Some(fs::canonicalize(&path).unwrap_or(path))
}

/// The root of the simulated host, if the library is in its `lib` folder.
pub(crate) fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = state_next_to_library()?.parent()?.parent()?.to_owned();
        root.join("proc/driver/nvidia").is_dir().then_some(root)
    })
    .as_deref()
}

/// The version in the name of the library file, as drivers name it: `libnvidia-ml.so.570.124.06`.
pub(crate) fn file_version() -> Option<&'static str> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    VERSION
        .get_or_init(|| {
            let path = library_path()?;
            let version = path
                .file_name()?
                .to_str()?
                .strip_prefix("libnvidia-ml.so.")?;
            version.contains('.').then(|| version.to_owned())
        })
        .as_deref()
}

/// The path from which the dynamic loader loaded the library, so that one process can use several simulated hosts.
fn library_path() -> Option<PathBuf> {
    static ANCHOR: u8 = 0;
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null(),
        symbol: std::ptr::null(),
        address: std::ptr::null(),
    };
    // SAFETY: the address belongs to this library, and `info` outlives the call.
    let found = unsafe { dladdr((&raw const ANCHOR).cast(), &raw mut info) };
    if found == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: dladdr returns a NUL-terminated name that is valid while the library is loaded.
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
struct FileLock(#[allow(dead_code, reason = "closing the file releases the lock")] fs::File);

impl FileLock {
    fn acquire(path: &Path) -> Result<Self, Code> {
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
