//! The changes of single events and of a rescan.

mod tree;

use std::fs;

use dra_topology::{Topology, Uevent};
use tree::{AMD_GPU, BRIDGE, GPU, NIC, Spec, Tree, address, event, json};

fn lists(topology: &mut Topology, event: &Uevent) -> [Vec<String>; 3] {
    let change = topology.apply(event).expect("applied");
    [change.added, change.removed, change.changed]
        .map(|list| list.iter().map(ToString::to_string).collect())
}

const NONE: Vec<String> = Vec::new();

#[test]
fn a_bridge_takes_its_subtree_with_it_and_brings_it_back() {
    let tree = Tree::new();
    let port = "pci0000:3a/0000:3a:00.0";
    let mut live = tree.scan();
    let plug = || {
        tree.add(port, &BRIDGE);
        tree.add(&format!("{port}/0000:3b:00.0"), &BRIDGE);
        tree.add(&format!("{port}/0000:3b:00.0/0000:3c:00.0"), &GPU);
    };
    plug();
    let all = ["0000:3a:00.0", "0000:3b:00.0", "0000:3c:00.0"]
        .map(String::from)
        .to_vec();
    assert_eq!(
        lists(&mut live, &event("add", "pci", port)),
        [all.clone(), NONE, NONE]
    );
    tree.remove(port);
    assert_eq!(
        lists(&mut live, &event("remove", "pci", port)),
        [NONE, all.clone(), NONE]
    );
    plug();
    assert_eq!(
        lists(&mut live, &event("add", "pci", port)),
        [all, NONE, NONE]
    );
}

#[test]
fn the_problems_of_an_unplugged_device_are_removed() {
    let tree = Tree::new();
    let port = "pci0000:3a/0000:3a:00.0";
    tree.add(port, &BRIDGE);
    let gpu = format!("{port}/0000:3b:00.0");
    tree.add(&gpu, &GPU);
    tree.write(&format!("devices/{gpu}/class"), "garbage");
    let mut live = tree.scan();
    assert_eq!(json(&live)["problems"][0]["where"], "0000:3b:00.0/class");
    tree.remove(port);
    live.apply(&event("remove", "pci", port)).expect("applied");
    assert_eq!(json(&live), json(&tree.scan()));
}

#[test]
fn only_what_differs_is_called_changed() {
    let tree = Tree::new();
    let gpu = "pci0000:3a/0000:3a:01.0";
    tree.add(gpu, &GPU);
    let mut live = tree.scan();
    assert_eq!(
        lists(&mut live, &event("change", "pci", gpu)),
        [NONE, NONE, NONE]
    );
    fs::create_dir_all(tree.path(&format!("devices/{gpu}/drm/renderD128"))).expect("created");
    let changed = [NONE, NONE, vec!["0000:3a:01.0".to_owned()]];
    assert_eq!(
        lists(
            &mut live,
            &event("add", "drm", &format!("{gpu}/drm/renderD128"))
        ),
        changed
    );
    tree.describe(
        gpu,
        &Spec {
            driver: None,
            ..GPU
        },
    );
    assert_eq!(lists(&mut live, &event("unbind", "pci", gpu)), changed);
    // The kernel renames interfaces with `move`.
    for name in ["block/sda", "usb/1-1", "net"] {
        assert_eq!(
            lists(&mut live, &event("add", "block", &format!("{gpu}/{name}"))),
            [NONE, NONE, NONE]
        );
    }
}

#[test]
fn a_virtual_function_changes_its_physical_one() {
    let tree = Tree::new();
    let (pf, vf) = ("pci0000:3a/0000:3a:00.0", "pci0000:3a/0000:3a:00.1");
    tree.add(pf, &NIC);
    tree.write(&format!("devices/{pf}/sriov_totalvfs"), "8");
    tree.write(&format!("devices/{pf}/sriov_numvfs"), "0");
    let mut live = tree.scan();
    tree.write(&format!("devices/{pf}/sriov_numvfs"), "1");
    tree.add(vf, &NIC);
    tree.link(&format!("devices/{vf}/physfn"), "../0000:3a:00.0");
    tree.link(&format!("devices/{pf}/virtfn0"), "../0000:3a:00.1");
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(
        lists(&mut live, &event("add", "pci", vf)),
        [one("0000:3a:00.1"), NONE, one("0000:3a:00.0")]
    );
    let physical = live
        .functions()
        .find(|f| f.address == address("0000:3a:00.0"))
        .and_then(|f| f.details.clone());
    assert_eq!(
        physical.map(|d| d.virtfns),
        Some(vec![address("0000:3a:00.1")])
    );
}

#[test]
fn a_suspended_device_keeps_its_link_which_is_not_read() {
    let tree = Tree::new();
    let gpu = "pci0000:3a/0000:3a:00.0";
    tree.add(gpu, &GPU);
    let status = |state: &str| tree.write(&format!("devices/{gpu}/power/runtime_status"), state);
    let width = |topology: &Topology| json(topology)["devices"][0]["link"]["max_width"].clone();
    tree.write(&format!("devices/{gpu}/max_link_width"), "16");
    status("suspended");
    let mut live = tree.scan();
    assert_eq!(width(&live), serde_json::Value::Null);
    status("active");
    live.apply(&event("change", "pci", gpu)).expect("applied");
    assert_eq!(width(&live), 16);
    status("suspended");
    tree.write(
        &format!("devices/{gpu}/max_link_width"),
        "garbage, if it were read",
    );
    live.apply(&event("change", "pci", gpu)).expect("applied");
    assert_eq!(width(&live), 16);
    live.rescan().expect("a rescan");
    assert_eq!(width(&live), 16);
    assert_eq!(json(&live)["problems"], serde_json::json!([]));
}

#[test]
fn changed_cpus_are_detected() {
    let tree = Tree::new();
    tree.add("pci0000:00/0000:00:01.0", &GPU);
    tree.write("devices/pci0000:00/pci_bus/0000:00/cpulistaffinity", "8-15");
    let mut live = tree.scan();
    tree.write("devices/system/node/node1/cpulist", "16-23");
    let change = live
        .apply(&event("offline", "cpu", "system/cpu/cpu8"))
        .expect("applied");
    assert!(change.numa_nodes);
    assert_eq!(change.changed, [address("0000:00:01.0")]);
}

#[test]
fn a_rescan_returns_what_the_events_did_not() {
    let tree = Tree::new();
    tree.add("pci0000:00/0000:00:01.0", &GPU);
    tree.add("pci0000:00/0000:00:02.0", &NIC);
    let mut live = tree.scan();
    tree.remove("pci0000:00/0000:00:01.0");
    tree.describe(
        "pci0000:00/0000:00:02.0",
        &Spec {
            driver: None,
            ..NIC
        },
    );
    tree.add("pci0000:00/0000:00:03.0", &AMD_GPU);
    let change = live.rescan().expect("a rescan");
    assert_eq!(change.added, [address("0000:00:03.0")]);
    assert_eq!(change.removed, [address("0000:00:01.0")]);
    assert_eq!(change.changed, [address("0000:00:02.0")]);
    assert_eq!(json(&live), json(&tree.scan()));
    // If sysfs no longer exists, the topology is unchanged.
    let before = json(&live);
    fs::remove_dir_all(tree.root()).expect("removed");
    live.rescan().expect_err("no sysfs");
    live.apply(&event("change", "pci", "pci0000:00/0000:00:02.0"))
        .expect_err("no sysfs");
    assert_eq!(json(&live), before);
}
