//! Damaged trees: each damage has limited effect and is reported.

mod tree;

use std::fs;
use std::os::unix::fs::symlink;

use dra_topology::{Topology, TopologyError};
use serde_json::json;
use tree::{GPU, Tree, device, json, problems};

#[test]
fn each_kind_of_damage_costs_one_device_and_is_named() {
    let tree = Tree::new();
    tree.add("pci0000:00/0000:00:01.0", &GPU);
    let listing = |name: &str| tree.path(&format!("bus/pci/devices/{name}"));
    // The link leads nowhere.
    symlink(
        "../../../devices/pci0000:00/0000:00:02.0",
        listing("0000:00:02.0"),
    )
    .expect("linked");
    // The link leads to another device.
    symlink(
        "../../../devices/pci0000:00/0000:00:01.0",
        listing("0000:00:03.0"),
    )
    .expect("linked");
    // The link leads to itself.
    symlink("0000:00:04.0", listing("0000:00:04.0")).expect("linked");
    // Not a link at all.
    fs::create_dir(listing("0000:00:05.0")).expect("created");
    // Not a PCI function at all.
    fs::write(listing("nonsense\n"), "").expect("written");
    // Garbage in place of a class, and of everything.
    tree.add("pci0000:00/0000:00:06.0", &GPU);
    tree.write("devices/pci0000:00/0000:00:06.0/class", "\u{1}\u{2}garbage");
    tree.add("pci0000:00/0000:00:07.0", &GPU);
    for file in ["class", "uevent", "vendor"] {
        fs::write(
            tree.path(&format!("devices/pci0000:00/0000:00:07.0/{file}")),
            [0xff; 3000],
        )
        .expect("written");
    }
    // A directory in place of a file, and a file that never ends.
    tree.add("pci0000:00/0000:00:08.0", &GPU);
    let class = tree.path("devices/pci0000:00/0000:00:08.0/class");
    fs::remove_file(&class).expect("removed");
    fs::create_dir(&class).expect("created");
    tree.add("pci0000:00/0000:00:09.0", &GPU);
    fs::write(
        tree.path("devices/pci0000:00/0000:00:09.0/class"),
        "0x030200".repeat(1 << 16),
    )
    .expect("written");
    // A class that changed under the scan.
    tree.add("pci0000:00/0000:00:0a.0", &GPU);
    tree.write("devices/pci0000:00/0000:00:0a.0/class", "0x020000");

    let topology = json(&tree.scan());
    let devices = topology["devices"].as_array().expect("devices");
    assert_eq!(
        devices
            .iter()
            .map(|d| &d["pci_address"])
            .collect::<Vec<_>>(),
        ["0000:00:01.0"]
    );
    let expected = [
        "bus/pci/devices/nonsense\\n: not the name of a PCI function",
        "0000:00:02.0: the link leads nowhere",
        "0000:00:03.0: the link leads to another device",
        "0000:00:04.0: the link does not lead below a PCI root bus",
        "0000:00:05.0: not a link, so its place in the PCI tree is unknown",
        "0000:00:06.0/class: unexpected content \"\\u{1}\\u{2}garbage\"",
        "0000:00:07.0/class: unexpected content",
        "0000:00:08.0/class: is a directory",
        "0000:00:09.0/class: file too large",
        "0000:00:0a.0/class: differs from the class in uevent",
    ];
    let found = problems(&topology);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} is not {expected}");
    }
}

#[test]
fn damage_outside_the_identity_costs_only_that_attribute() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:01.0";
    tree.add(place, &GPU);
    tree.write(&format!("devices/{place}/numa_node"), "many");
    tree.write(&format!("devices/{place}/max_link_width"), "wide");
    tree.link(&format!("devices/{place}/iommu_group"), "../../nonsense");
    tree.link(&format!("devices/{place}/revision"), "revision");
    let topology = json(&tree.scan());
    let gpu = device(&topology, "0000:00:01.0");
    assert_eq!(
        (&gpu["numa_node"], &gpu["link"], &gpu["iommu_group"]),
        (&json!(null), &json!(null), &json!(null))
    );
    let found = problems(&topology);
    assert_eq!(
        found,
        [
            "0000:00:01.0/iommu_group: unexpected content \"nonsense\"",
            "0000:00:01.0/numa_node: unexpected content \"many\"",
            "0000:00:01.0/revision: too many levels of symbolic links",
            "0000:00:01.0/max_link_width: unexpected content \"wide\"",
        ]
    );
}

#[test]
fn a_missing_root_is_one_clear_error() {
    let tree = Tree::new();
    let missing = tree.path("no/such/place");
    let error = Topology::scan(&missing).expect_err("no sysfs");
    assert_eq!(
        error.to_string(),
        format!(
            "{}: cannot open this as sysfs: no such file or directory",
            missing.display()
        )
    );
    let empty = tempfile::tempdir().expect("a directory");
    assert!(matches!(
        Topology::scan(empty.path()),
        Err(TopologyError::NotSysfs { .. })
    ));
    tree.write("file", "");
    assert!(matches!(
        Topology::scan(tree.path("file")),
        Err(TopologyError::Open { .. })
    ));
}

#[test]
fn a_host_without_pci_is_reported() {
    let tree = Tree::new();
    fs::remove_dir_all(tree.path("bus/pci")).expect("removed");
    let topology = json(&tree.scan());
    assert_eq!(topology["devices"], json!([]));
    assert_eq!(
        problems(&topology),
        ["bus/pci/devices: missing: this host has no PCI"]
    );
}
