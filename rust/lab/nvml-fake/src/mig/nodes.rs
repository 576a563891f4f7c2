//! Folders of instances in /proc/driver/nvidia/capabilities, and their device nodes.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulong};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::abi::Code;
use crate::files;
use crate::mig::instances::PartitionLayout;

/// First minor number, as in the driver's /proc/driver/nvidia-caps/mig-minors: `config` is 1, `monitor` is 2.
const FIRST: u32 = 3;
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;
const NODES_OF_A_GPU: u32 = GPU_INSTANCES * (1 + COMPUTE_INSTANCES);
const MODE: u32 = 0o444;
/// The link of /dev/nvidiactl.
const CONTROL: &str = "195:255";

/// Creates the missing folders and nodes of a GPU's instances.
///
/// Without `visible`, no folder: NVIDIA's legacy container runtime covers /proc/driver/nvidia (libnvidia-container,
/// nvc_mount.c). The nodes are in the host's /dev in any case.
pub(crate) fn add(minor: u32, layout: &PartitionLayout, visible: bool) -> Result<(), Code> {
    let Some(root) = files::root() else {
        return Ok(());
    };
    for (folder, node) in expected(root, minor, layout) {
        let path = node_path(root, node);
        let created = if visible && !folder.join("access").exists() {
            make_node(&path, node).and_then(|()| make_folder(&folder, node))
        } else if !visible && !path.exists() {
            make_node(&path, node)
        } else {
            Ok(())
        };
        created.map_err(|_| Code::OPERATING_SYSTEM)?;
    }
    Ok(())
}

/// Removes the folders and nodes of instances that do not exist.
pub(crate) fn remove_others(minor: u32, layout: &PartitionLayout) {
    let Some(root) = files::root() else {
        return;
    };
    let expected = expected(root, minor, layout);
    // The next change retries a failed removal.
    for instance in folders(&mig_folder(root, minor)) {
        for folder in folders(&instance).into_iter().chain([instance]) {
            if !expected.contains_key(&folder) {
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
    let first = FIRST + minor * NODES_OF_A_GPU;
    for node in first..first + NODES_OF_A_GPU {
        if !expected.values().any(|other| *other == node) {
            let _ = fs::remove_file(node_path(root, node));
        }
    }
}

/// The folders of a GPU's instances, each with the number of its node.
fn expected(root: &Path, minor: u32, layout: &PartitionLayout) -> BTreeMap<PathBuf, u32> {
    let mut expected = BTreeMap::new();
    for instance in &layout.gpu_instances {
        let number = minor * GPU_INSTANCES + instance.id;
        let node = FIRST + number * (1 + COMPUTE_INSTANCES);
        let folder = mig_folder(root, minor).join(format!("gi{}", instance.id));
        for compute in &instance.compute_instances {
            let below = folder.join(format!("ci{}", compute.id));
            expected.insert(below, node + 1 + compute.id);
        }
        expected.insert(folder, node);
    }
    expected
}

/// Creates a folder with its file, atomically.
fn make_folder(folder: &Path, node: u32) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let text = format!("DeviceFileMinor: {node}\nDeviceFileMode: {MODE}\nDeviceFileModify: 1\n");
    let temporary = folder.join(".access");
    fs::write(&temporary, text)?;
    fs::rename(temporary, folder.join("access"))
}

fn mig_folder(root: &Path, minor: u32) -> PathBuf {
    root.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"))
}

fn node_path(root: &Path, node: u32) -> PathBuf {
    root.join(format!("dev/nvidia-caps/nvidia-cap{node}"))
}

fn folders(of: &Path) -> Vec<PathBuf> {
    fs::read_dir(of)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// Creates a character device with the major number from the host's /proc/devices. Without the permission to do so,
/// creates an empty file, as elsewhere in a simulated host.
fn make_node(path: &Path, minor: u32) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    const CHARACTER: c_uint = 0o020_000;
    // SAFETY: a NUL-terminated path and two numbers.
    let created = unsafe {
        mknod(
            name.as_ptr(),
            CHARACTER | MODE,
            number(major(), minor.into()),
        )
    };
    if created != 0 && !path.exists() {
        fs::write(path, "")?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    link(minor)
}

/// Links a node in dev/char where the other nodes of the driver have links: NVIDIA's tool makes those of all
/// capabilities in advance (`nvidia-ctk system create-dev-char-symlinks --create-all`). A link is never removed.
fn link(minor: u32) -> io::Result<()> {
    let Some(root) = files::root() else {
        return Ok(());
    };
    let links = root.join("dev/char");
    if !links.join(CONTROL).is_symlink() {
        return Ok(());
    }
    let target = format!("../nvidia-caps/nvidia-cap{minor}");
    match symlink(target, links.join(format!("{}:{minor}", major()))) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn major() -> c_ulong {
    let listed = files::root().map(|root| fs::read_to_string(root.join("proc/devices")));
    listed
        .and_then(Result::ok)
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.trim().strip_suffix(" nvidia-caps")?.parse().ok())
        .unwrap_or(0)
}

/// makedev(3).
fn number(major: c_ulong, minor: c_ulong) -> c_ulong {
    (major & 0xFFF) << 8 | (major & !0xFFF) << 32 | (minor & 0xFF) | (minor & !0xFF) << 12
}

unsafe extern "C" {
    fn mknod(path: *const c_char, mode: c_uint, device: c_ulong) -> c_int;
}
