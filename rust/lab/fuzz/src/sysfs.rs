//! Damaged sysfs trees. An input is a list of changes to the tree of a host, as JSON: `[PATH, "file", CONTENT]`,
//! `[PATH, "link", TARGET]`, `[PATH, "folder"]` and `[PATH, "gone"]`.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use dra_topology::{Change, Topology, Uevent};
use serde_json::Value;

use crate::Target;
use crate::sample::one_in;

#[path = "../../../topology/tests/tree/mod.rs"]
mod tree;

use tree::{AMD_GPU, BRIDGE, GPU, NIC, Tree};

pub const TARGET: Target = Target {
    name: "sysfs",
    check,
    heap_bytes: 16 << 20,
    cpu: Duration::from_secs(5),
};

thread_local! {
    /// The restored host of the last input, reused because the construction of a tree is slow.
    static HOST: Cell<Option<Host>> = const { Cell::new(None) };
}

/// Number of inputs between comparisons of the restored tree with the original.
const RESTORED_BEFORE_CHECK: u32 = 1024;
const MAX_CHANGES: usize = 16;
/// Of so many inputs one is scanned twice, because system calls take most of the time.
const SCANNED_TWICE: u32 = 4;
const PATHS: [&str; 5] = [
    "pci0000:3a/0000:3a:00.0",
    "pci0000:3a/0000:3a:00.0/0000:3b:00.0",
    "pci0000:3a/0000:3a:01.0",
    "pci0000:3a/0000:3a:01.0/0000:3c:00.0",
    "pci0000:80/0000:80:00.0",
];

fn check(data: &[u8]) {
    let Ok(Value::Array(changes)) = serde_json::from_slice(data) else {
        return;
    };
    if changes.len() > MAX_CHANGES {
        return;
    }
    // After a failure the host is dropped.
    let mut host = HOST.take().unwrap_or_else(Host::new);
    check_changes(&mut host, &changes, one_in(SCANNED_TWICE, data));
    host.restore();
    HOST.set(Some(host));
}

fn check_changes(host: &mut Host, changes: &[Value], twice: bool) {
    let mut updated = host.scanned.clone();
    let mut rescanned = host.scanned.clone();
    for change in changes {
        host.make(change);
    }
    if host.touched.is_empty() {
        return;
    }
    let tree = &host.tree;
    let scanned = Topology::scan(tree.root());
    if let Ok(scanned) = &scanned {
        let json: Value = serde_json::from_slice(&scanned.to_json()).expect("a snapshot is JSON");
        for problem in json["problems"].as_array().expect("problems") {
            assert!(
                problem["what"]
                    .as_str()
                    .is_some_and(|what| !what.is_empty()),
                "{problem}"
            );
        }
        if twice {
            let again = Topology::scan(tree.root()).expect("a tree that was scanned");
            assert_eq!(
                devices(&again),
                devices(scanned),
                "a second scan finds other devices"
            );
        }
    }
    // Events and a rescan have the same result.
    let outcome: Result<Change, _> = rescanned.rescan();
    assert_eq!(
        outcome.is_ok(),
        scanned.is_ok(),
        "a rescan works where a scan does"
    );
    let names = fs::read_dir(tree.path("bus/pci/devices"))
        .into_iter()
        .flatten()
        .flatten();
    let mut places: Vec<String> = PATHS.iter().map(ToString::to_string).collect();
    places.extend(
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| {
                !PATHS
                    .iter()
                    .any(|place| place.rsplit('/').next() == Some(name))
            }),
    );
    for place in places {
        let event = Uevent {
            action: "change".into(),
            devpath: format!("/devices/{place}"),
            subsystem: "pci".into(),
        };
        if updated.apply(&event).is_err() {
            return;
        }
    }
    let touches_all = changes.iter().any(|change| {
        let path = change[0].as_str().unwrap_or_default();
        path.contains("system") || !path.contains("0000:")
    });
    if outcome.is_ok() && !touches_all {
        assert_eq!(
            devices(&updated),
            devices(&rescanned),
            "events and a rescan find different devices"
        );
    }
}

fn host() -> Tree {
    let tree = Tree::new();
    for (place, spec) in PATHS.iter().zip([BRIDGE, GPU, BRIDGE, NIC, AMD_GPU]) {
        tree.add(place, &spec);
    }
    tree.write(
        "class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 304\nlocation_id 32768\ndomain 0",
    );
    let nic = format!("devices/{}", PATHS[3]);
    tree.write(&format!("{nic}/net/eth0/address"), "02:00:00:00:00:01");
    tree.write(
        &format!("{nic}/infiniband/mlx5_0/node_guid"),
        "0000:0000:0000:0001",
    );
    tree.write(&format!("{nic}/sriov_totalvfs"), "4");
    tree.write(&format!("{nic}/sriov_numvfs"), "0");
    let gpu = format!("devices/{}", PATHS[1]);
    tree.write(&format!("{gpu}/drm/card0/dev"), "226:0");
    tree.write(&format!("{gpu}/current_link_speed"), "16.0 GT/s PCIe");
    tree.write(&format!("{gpu}/max_link_speed"), "32.0 GT/s PCIe");
    tree.write(&format!("{gpu}/max_link_width"), "16");
    tree.link(
        &format!("{gpu}/iommu_group"),
        "../../../../kernel/iommu_groups/7",
    );
    tree
}

#[derive(Debug, PartialEq)]
enum Content {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
}

/// A tree with changes that can be undone.
struct Host {
    tree: Tree,
    /// The original entries of the tree, folders before their content.
    entries: Vec<(PathBuf, Content)>,
    /// The topology of the original tree.
    scanned: Topology,
    /// The changed paths, with links resolved.
    touched: Vec<PathBuf>,
    restored: u32,
}

impl Host {
    fn new() -> Self {
        let tree = host();
        let mut entries = Vec::new();
        list(&real(tree.root()).expect("a folder"), &mut entries);
        Self {
            scanned: tree.scan(),
            tree,
            entries,
            touched: Vec::new(),
            restored: 0,
        }
    }

    /// Makes a change within the tree. Ignores errors of the file system.
    fn make(&mut self, change: &Value) {
        let Some(below) = change[0].as_str().filter(|path| is_within(path)) else {
            return;
        };
        let path = self.tree.path(below);
        self.touch(&path);
        let content = change[2].as_str().unwrap_or_default();
        match change[1].as_str() {
            Some("file") if !path.is_symlink() => {
                let _ = path.parent().map(fs::create_dir_all);
                let _ = fs::write(&path, content);
            }
            Some("link") => {
                let _ = path.parent().map(fs::create_dir_all);
                if stays_within(&self.tree, &path, content) {
                    remove(&path);
                    let _ = symlink(content, &path);
                }
            }
            Some("folder") => {
                remove(&path);
                let _ = fs::create_dir_all(&path);
            }
            Some("gone") => remove(&path),
            _ => {}
        }
    }

    /// Records the topmost path at or above `path` that a change of it can create or remove.
    fn touch(&mut self, path: &Path) {
        let mut place = path;
        while let Some(folder) = place.parent() {
            if let (Some(folder), Some(name)) = (real(folder), place.file_name()) {
                self.touched.push(folder.join(name));
                return;
            }
            place = folder;
        }
    }

    /// Undoes the changes, the last one first, so that each path refers to the changed entry.
    fn restore(&mut self) {
        for place in std::mem::take(&mut self.touched).iter().rev() {
            remove(place);
            for (path, content) in &self.entries {
                if path.starts_with(place) {
                    // An error means that an earlier change replaced a parent by a file.
                    let _ = match content {
                        Content::Folder => fs::create_dir(path),
                        Content::File(bytes) => fs::write(path, bytes),
                        Content::Link(target) => symlink(target, path),
                    };
                }
            }
        }
        self.restored += 1;
        if self.restored.is_multiple_of(RESTORED_BEFORE_CHECK) {
            let mut entries = Vec::new();
            list(&real(self.tree.root()).expect("a folder"), &mut entries);
            assert_eq!(entries, self.entries, "the tree was not restored");
        }
    }
}

fn list(folder: &Path, entries: &mut Vec<(PathBuf, Content)>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_symlink() {
            let target = fs::read_link(&path).expect("a link");
            entries.push((path, Content::Link(target)));
        } else if path.is_dir() {
            entries.push((path.clone(), Content::Folder));
            list(&path, entries);
        } else {
            let bytes = fs::read(&path).expect("a file");
            entries.push((path, Content::File(bytes)));
        }
    }
}

fn real(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

fn remove(path: &Path) {
    if path.is_symlink() || path.is_file() {
        let _ = fs::remove_file(path);
    } else {
        let _ = fs::remove_dir_all(path);
    }
}

/// Whether a link's target is in the tree. The real path counts, because other links may lead to its folder.
fn stays_within(tree: &Tree, link: &Path, target: &str) -> bool {
    let below = target.trim_start_matches("../");
    let ups = (target.len() - below.len()) / "../".len();
    let depth = link.parent().and_then(real).and_then(|folder| {
        let root = real(tree.root())?;
        Some(folder.strip_prefix(root).ok()?.components().count())
    });
    is_within(below) && depth.is_some_and(|depth| ups <= depth)
}

/// Whether a path has no parent components.
fn is_within(path: &str) -> bool {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    !path.is_empty()
        && path.len() < 1024
        && !path.contains('\0')
        && Path::new(path).components().all(plain)
}

fn devices(topology: &Topology) -> Value {
    let mut json: Value = serde_json::from_slice(&topology.to_json()).expect("a snapshot is JSON");
    json["devices"].take()
}
