//! Builds sysfs trees as the kernel lays them out, for tests.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use dra_topology::{PciAddress, Topology, Uevent};
use tempfile::TempDir;

pub(crate) struct Tree {
    dir: TempDir,
}

/// The attributes of a function of a tree.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) class: u32,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) driver: Option<&'static str>,
    pub(crate) numa: i32,
}

pub(crate) const BRIDGE: Spec = Spec {
    class: 0x06_04_00,
    vendor: 0x10b5,
    device: 0x9797,
    driver: Some("pcieport"),
    numa: -1,
};
pub(crate) const GPU: Spec = Spec {
    class: 0x03_02_00,
    vendor: 0x10de,
    device: 0x2330,
    driver: Some("nvidia"),
    numa: -1,
};
pub(crate) const AMD_GPU: Spec = Spec {
    class: 0x12_00_00,
    vendor: 0x1002,
    device: 0x74a1,
    driver: Some("amdgpu"),
    numa: -1,
};
pub(crate) const NIC: Spec = Spec {
    class: 0x02_07_00,
    vendor: 0x15b3,
    device: 0x1021,
    driver: Some("mlx5_core"),
    numa: -1,
};

/// An NPU of a later AMD APU: its class is that of a signal processing controller, and its id is not known.
pub(crate) const NPU: Spec = Spec {
    class: 0x11_80_00,
    vendor: 0x1022,
    device: 0x0001,
    driver: Some("amdxdna"),
    numa: -1,
};

pub(crate) fn address(text: &str) -> PciAddress {
    PciAddress::parse(text.as_bytes()).expect("an address")
}

impl Tree {
    /// Two NUMA nodes of eight CPUs and no PCI function.
    pub(crate) fn new() -> Self {
        let tree = Self {
            dir: tempfile::tempdir().expect("a directory"),
        };
        for (id, cpus, distance) in [(0, "0-7", "10 21"), (1, "8-15", "21 10")] {
            let node = format!("devices/system/node/node{id}");
            tree.write(&format!("{node}/cpulist"), cpus);
            tree.write(&format!("{node}/distance"), distance);
            tree.write(
                &format!("{node}/meminfo"),
                &format!("Node {id} MemTotal:  1024 kB\nNode {id} MemFree: 3 kB"),
            );
        }
        for cpu in [0, 8] {
            let package = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
            tree.write(&package, &(cpu / 8).to_string());
        }
        fs::create_dir_all(tree.path("bus/pci/devices")).expect("created");
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) fn write(&self, below: &str, content: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, format!("{content}\n")).expect("written");
    }

    /// A directory of sysfs for the character device `node`, a name below `/dev`.
    pub(crate) fn node(&self, below: &str, node: &str) {
        self.write(&format!("{below}/dev"), "261:0");
        let uevent = format!("MAJOR=261\nMINOR=0\nDEVNAME={node}");
        self.write(&format!("{below}/uevent"), &uevent);
    }

    pub(crate) fn link(&self, below: &str, target: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        symlink(target, path).expect("linked");
    }

    /// `place` is the path below `devices/`: `pci0000:3a/0000:3a:00.0`.
    pub(crate) fn add(&self, place: &str, spec: &Spec) -> PciAddress {
        let own = place.rsplit('/').next().expect("a name");
        self.describe(place, spec);
        self.link(
            &format!("bus/pci/devices/{own}"),
            &format!("../../../devices/{place}"),
        );
        address(own)
    }

    /// Writes the attributes of the function, replacing earlier ones.
    pub(crate) fn describe(&self, place: &str, spec: &Spec) {
        let own = place.rsplit('/').next().expect("a name");
        let Spec {
            class,
            vendor,
            device,
            driver,
            numa,
        } = spec;
        let at = |file: &str| format!("devices/{place}/{file}");
        let bound = driver
            .map(|name| format!("DRIVER={name}\n"))
            .unwrap_or_default();
        self.write(
            &at("uevent"),
            &format!("{bound}PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID=0000:0000\nPCI_SLOT_NAME={own}"),
        );
        self.write(&at("class"), &format!("0x{class:06x}"));
        self.write(&at("vendor"), &format!("0x{vendor:04x}"));
        self.write(&at("device"), &format!("0x{device:04x}"));
        self.write(&at("numa_node"), &numa.to_string());
    }

    /// Removes the directory of an unplugged device and all links to it.
    pub(crate) fn remove(&self, place: &str) {
        fs::remove_dir_all(self.path(&format!("devices/{place}"))).expect("removed");
        for entry in fs::read_dir(self.path("bus/pci/devices")).expect("listed") {
            let path = entry.expect("an entry").path();
            if !path.exists() {
                fs::remove_file(path).expect("removed");
            }
        }
    }

    pub(crate) fn scan(&self) -> Topology {
        Topology::scan(self.root()).expect("a topology")
    }
}

pub(crate) fn event(action: &str, subsystem: &str, place: &str) -> Uevent {
    Uevent {
        action: action.into(),
        devpath: format!("/devices/{place}"),
        subsystem: subsystem.into(),
    }
}

/// The snapshot as a JSON value.
pub(crate) fn json(topology: &Topology) -> serde_json::Value {
    serde_json::from_slice(&topology.to_json()).expect("JSON")
}

pub(crate) fn device<'a>(topology: &'a serde_json::Value, address: &str) -> &'a serde_json::Value {
    let devices = topology["devices"].as_array().expect("devices");
    devices
        .iter()
        .find(|d| d["pci_address"] == address)
        .unwrap_or_else(|| panic!("{address} is missing"))
}

pub(crate) fn problems(topology: &serde_json::Value) -> Vec<String> {
    let problems = topology["problems"].as_array().expect("problems");
    problems
        .iter()
        .map(|p| {
            format!(
                "{}: {}",
                p["where"].as_str().unwrap_or(""),
                p["what"].as_str().unwrap_or("")
            )
        })
        .collect()
}
