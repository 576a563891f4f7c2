//! Measures the scan, the file operations that it needs, and one event.
//!
//! `scan SYSFS ROUNDS` prints one time in ns and the number of functions per line, `bare SYSFS ROUNDS` the same for
//! open, read and close of the files alone, `event SYSFS DEVPATH ROUNDS` for one event on a scanned host.

use std::ffi::CString;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use dra_topology::{Topology, Uevent};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let [what, sysfs, rest @ .., rounds] = &arguments[..] else {
        println!("benchmarks/scan.py runs this with the operation to measure");
        return;
    };
    let rounds: u32 = rounds.parse().expect("a number of rounds");
    match (what.as_str(), rest) {
        ("scan", []) => report(rounds, || {
            Topology::scan(sysfs)
                .expect("a topology")
                .functions()
                .count()
        }),
        ("bare", []) => {
            let bare = Bare::needed_by_a_scan_of(sysfs);
            report(rounds, || bare.read());
        }
        ("event", [devpath]) => {
            let mut topology = Topology::scan(sysfs).expect("a topology");
            let event = Uevent {
                action: "change".into(),
                devpath: devpath.clone(),
                subsystem: "pci".into(),
            };
            report(rounds, || {
                black_box(topology.apply(&event).expect("applied"));
                topology.functions().count()
            });
        }
        _ => panic!("unknown benchmark {what}"),
    }
}

fn report(rounds: u32, mut work: impl FnMut() -> usize) {
    for _ in 0..rounds {
        let start = Instant::now();
        let functions = black_box(work());
        println!("{} {functions}", start.elapsed().as_nanos());
    }
}

/// The file operations that any scan needs: names relative to the bus listing, which is opened once.
struct Bare {
    devices: OwnedFd,
    functions: usize,
    files: Vec<CString>,
    links: Vec<CString>,
    folders: Vec<CString>,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Bare {
    fn needed_by_a_scan_of(sysfs: &str) -> Self {
        let listing = std::path::Path::new(sysfs).join("bus/pci/devices");
        let topology = Topology::scan(sysfs).expect("a topology");
        let (mut files, mut links, mut folders) = (vec![], vec![], vec![]);
        let needs = |list: &mut Vec<CString>, name: String| {
            if listing.join(&name).symlink_metadata().is_ok() {
                list.push(CString::new(name).expect("a name"));
            }
        };
        needs(&mut folders, ".".into());
        for function in topology.functions() {
            let own = function.address.to_string();
            needs(&mut links, own.clone());
            needs(&mut links, format!("{own}/iommu_group"));
            for file in ["uevent", "numa_node"] {
                needs(&mut files, format!("{own}/{file}"));
            }
            if function.details.is_none() {
                continue;
            }
            needs(&mut links, format!("{own}/physfn"));
            for file in [
                "class",
                "revision",
                "power/runtime_status",
                "current_link_speed",
                "current_link_width",
                "max_link_speed",
                "max_link_width",
                "../vendor",
                "../max_link_speed",
                "../max_link_width",
                "sriov_totalvfs",
            ] {
                needs(&mut files, format!("{own}/{file}"));
            }
            for folder in ["net", "infiniband", "infiniband_verbs", "drm", "accel"] {
                needs(&mut folders, format!("{own}/{folder}"));
            }
        }
        let nodes = "../../../devices/system";
        needs(&mut folders, format!("{nodes}/node"));
        for node in 0..64 {
            for file in ["cpulist", "meminfo", "distance"] {
                needs(&mut files, format!("{nodes}/node/node{node}/{file}"));
            }
        }
        let devices = openat(CWD, &listing, DIRECTORY, Mode::empty()).expect("a listing");
        Self {
            devices,
            functions: topology.functions().count(),
            files,
            links,
            folders,
        }
    }

    fn read(&self) -> usize {
        let mut content = [0; 4096];
        for file in &self.files {
            let file = openat(
                &self.devices,
                file,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .expect("opened");
            black_box(rustix::io::read(&file, &mut content).expect("read"));
        }
        for link in &self.links {
            black_box(readlinkat_raw(&self.devices, link, &mut content[..]).expect("a link"));
        }
        let mut space = [MaybeUninit::uninit(); 32768];
        for folder in &self.folders {
            let folder = openat(&self.devices, folder, DIRECTORY, Mode::empty()).expect("opened");
            let mut entries = RawDir::new(folder, &mut space);
            while let Some(entry) = entries.next() {
                black_box(entry.expect("an entry").file_name());
            }
        }
        self.functions
    }
}
