//! Scans of trees with one special case each.

mod tree;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify;
use serde_json::json;
use tree::{AMD_GPU, BRIDGE, GPU, NIC, NPU, Spec, Tree, device, json, problems};

/// The last component of a path.
fn own_name(path: &str) -> &str {
    path.rsplit('/').next().expect("a name")
}

/// Root port, switch and its downstream ports below `pciDDDD:BB`; returns the paths of the two ports.
fn switch(tree: &Tree, root: &str, bus: u8, numa: i32) -> [String; 2] {
    let port = format!("{root}/0000:{bus:02x}:00.0");
    let upstream = format!("{port}/0000:{:02x}:00.0", bus + 1);
    let downstream = [4, 8].map(|slot| format!("{upstream}/0000:{:02x}:{slot:02x}.0", bus + 2));
    tree.add(&port, &Spec { numa, ..BRIDGE });
    tree.add(&upstream, &BRIDGE);
    for place in &downstream {
        tree.add(place, &BRIDGE);
    }
    downstream
}

#[test]
fn neighbours_share_a_switch_and_take_their_node_from_the_root_port() {
    let tree = Tree::new();
    let near = switch(&tree, "pci0000:3a", 0x3a, 1);
    let far = switch(&tree, "pci0000:5d", 0x5d, 1);
    let other = switch(&tree, "pci0000:80", 0x80, 0);
    for (place, spec) in [
        (format!("{}/0000:3d:00.0", near[0]), GPU),
        (format!("{}/0000:3e:00.0", near[1]), NIC),
        (format!("{}/0000:60:00.0", far[0]), GPU),
        (format!("{}/0000:83:00.0", other[0]), GPU),
    ] {
        tree.add(&place, &spec);
    }
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    let gpu = device(&topology, "0000:3d:00.0");
    assert_eq!(gpu["kind"], "gpu");
    assert_eq!(gpu["pcie_root"], "pci0000:3a");
    assert_eq!(gpu["pcie_switch"], "0000:3b:00.0");
    assert_eq!(
        gpu["parents"],
        json!(["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"])
    );
    assert_eq!(
        (&gpu["numa_node"], &gpu["numa_source"]),
        (&json!(1), &json!("ancestor"))
    );
    assert_eq!(
        topology["distances"],
        json!({
            "0000:3d:00.0,0000:3e:00.0": "PIX",
            "0000:3d:00.0,0000:60:00.0": "NODE",
            "0000:3d:00.0,0000:83:00.0": "SYS",
            "0000:3e:00.0,0000:60:00.0": "NODE",
            "0000:3e:00.0,0000:83:00.0": "SYS",
            "0000:60:00.0,0000:83:00.0": "SYS",
        })
    );
}

#[test]
fn cascaded_switches_and_a_shared_host_bridge_are_farther() {
    let tree = Tree::new();
    let [left, right] = switch(&tree, "pci0000:10", 0x10, 0);
    let inner = format!("{left}/0000:13:00.0");
    tree.add(&inner, &BRIDGE);
    tree.add(&format!("{inner}/0000:14:00.0"), &BRIDGE);
    tree.add(&format!("{inner}/0000:14:00.0/0000:15:00.0"), &GPU);
    tree.add(&format!("{right}/0000:16:00.0"), &NIC);
    tree.add("pci0000:10/0000:10:01.0", &BRIDGE);
    tree.add("pci0000:10/0000:10:01.0/0000:17:00.0", &NIC);
    let topology = json(&tree.scan());
    assert_eq!(
        device(&topology, "0000:15:00.0")["pcie_switch"],
        "0000:11:00.0"
    );
    assert_eq!(
        topology["distances"],
        json!({
            "0000:15:00.0,0000:16:00.0": "PXB",
            "0000:15:00.0,0000:17:00.0": "PHB",
            "0000:16:00.0,0000:17:00.0": "PHB",
        })
    );
}

#[test]
fn devices_behind_vmd_keep_the_outer_root_and_meet_in_a_host_bridge() {
    let tree = Tree::new();
    let vmd = "pci0000:e2/0000:e2:00.5";
    tree.add(
        vmd,
        &Spec {
            class: 0x01_04_00,
            vendor: 0x8086,
            device: 0x28c0,
            driver: Some("vmd"),
            numa: 1,
        },
    );
    let nvme = Spec {
        class: 0x01_08_02,
        vendor: 0x144d,
        device: 0xa824,
        driver: Some("nvme"),
        numa: -1,
    };
    for (port, bus) in [(1, 0xe1), (3, 0xe2)] {
        let port = format!("{vmd}/pci10000:e0/10000:e0:{port:02x}.0");
        tree.add(&port, &BRIDGE);
        tree.add(&format!("{port}/10000:{bus:02x}:00.0"), &nvme);
    }
    tree.add("pci0000:00/0000:00:01.0", &GPU);
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    let drive = device(&topology, "10000:e1:00.0");
    assert_eq!(drive["pcie_root"], "pci0000:e2");
    assert_eq!(drive["parents"], json!(["0000:e2:00.5", "10000:e0:01.0"]));
    assert_eq!(drive["numa_node"], 1);
    assert_eq!(topology["distances"]["10000:e1:00.0,10000:e2:00.0"], "PHB");
    // The lower address comes first: domain 0000 before 10000, as numbers and not as text.
    assert_eq!(topology["distances"]["0000:00:01.0,10000:e1:00.0"], "SYS");
    let order: Vec<_> = topology["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .map(|d| d["pci_address"].clone())
        .collect();
    assert_eq!(order.last(), Some(&json!("10000:e2:00.0")));
}

#[test]
fn a_bridge_missing_from_the_listing_is_a_parent_and_has_a_node() {
    let tree = Tree::new();
    tree.describe("pci0000:5d/0000:5d:02.0", &Spec { numa: 1, ..BRIDGE });
    tree.add("pci0000:5d/0000:5d:02.0/0000:5e:00.0", &GPU);
    let topology = json(&tree.scan());
    let gpu = device(&topology, "0000:5e:00.0");
    assert_eq!(gpu["parents"], json!(["0000:5d:02.0"]));
    assert_eq!(
        (&gpu["numa_node"], &gpu["numa_source"]),
        (&json!(1), &json!("ancestor"))
    );
    assert_eq!(topology["devices"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_unknown_node_is_found_by_cpus_or_stays_unknown() {
    let tree = Tree::new();
    for (root, affinity) in [
        ("pci0000:00", "8-15"),
        ("pci0000:40", "0-15"),
        ("pci0000:80", ""),
    ] {
        let bus = &root[3..];
        tree.write(
            &format!("devices/{root}/pci_bus/{bus}/cpulistaffinity"),
            affinity,
        );
        tree.add(&format!("{root}/{bus}:01.0"), &GPU);
    }
    tree.add("pci0000:c0/0000:c0:01.0", &GPU);
    tree.write("devices/pci0000:c0/0000:c0:01.0/local_cpulist", "3");
    let topology = json(&tree.scan());
    let found = |address: &str| {
        let device = device(&topology, address);
        (device["numa_node"].clone(), device["numa_source"].clone())
    };
    assert_eq!(found("0000:00:01.0"), (json!(1), json!("cpulist")));
    assert_eq!(found("0000:40:01.0"), (json!(null), json!(null)));
    assert_eq!(found("0000:80:01.0"), (json!(null), json!(null)));
    assert_eq!(found("0000:c0:01.0"), (json!(0), json!("cpulist")));
    assert_eq!(topology["distances"]["0000:40:01.0,0000:80:01.0"], "SYS");
}

#[test]
fn supported_devices_are_read_completely() {
    let tree = Tree::new();
    let pf = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    let vf = "pci0000:3a/0000:3a:00.0/0000:3b:00.2";
    tree.add("pci0000:3a/0000:3a:00.0", &BRIDGE);
    tree.add(pf, &Spec { numa: 0, ..NIC });
    tree.add(
        vf,
        &Spec {
            driver: Some("mlx5_vfio_pci"),
            device: 0x101e,
            ..NIC
        },
    );
    for (file, content) in [
        ("revision", "0x0a"),
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "8"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("sriov_totalvfs", "16"),
        // Read under the device's lock by the kernel, so the scan does not read it and counts the links.
        ("sriov_numvfs", "7"),
        ("net/ens1f0np0/mtu", "9000"),
        ("infiniband/mlx5_0/node_type", "1: CA"),
        ("infiniband_verbs/uverbs0/dev", "231:192"),
    ] {
        tree.write(&format!("devices/{pf}/{file}"), content);
    }
    tree.link(&format!("devices/{pf}/virtfn0"), "../0000:3b:00.2");
    tree.link(&format!("devices/{vf}/physfn"), "../0000:3b:00.0");
    tree.link(
        &format!("devices/{pf}/iommu_group"),
        "../../../../kernel/iommu_groups/27",
    );
    tree.write(&format!("devices/{vf}/vfio-dev/vfio3/dev"), "511:3");
    let gpu = "pci0000:3a/0000:3a:01.0";
    tree.add(gpu, &AMD_GPU);
    tree.write(&format!("devices/{gpu}/drm/card1/dev"), "226:1");
    tree.write(&format!("devices/{gpu}/drm/renderD129/dev"), "226:129");
    tree.write(
        "class/kfd/kfd/topology/nodes/0/properties",
        "cpu_cores_count 8\nsimd_count 0\nlocation_id 0\ndomain 0",
    );
    tree.write(
        "class/kfd/kfd/topology/nodes/3/properties",
        "simd_count 304\nlocation_id 14856\ndomain 0",
    );

    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    let nic = device(&topology, "0000:3b:00.0");
    assert_eq!(
        nic["link"],
        json!({"generation": 4, "width": 8, "max_generation": 5, "max_width": 16})
    );
    assert_eq!(nic["sriov"], json!({"total_vfs": 16, "num_vfs": 1}));
    assert_eq!(nic["virtfns"], json!(["0000:3b:00.2"]));
    assert_eq!(nic["iommu_group"], 27);
    assert_eq!(nic["revision"], "0x0a");
    assert_eq!(
        (&nic["net"], &nic["infiniband"], &nic["uverbs"]),
        (
            &json!(["ens1f0np0"]),
            &json!(["mlx5_0"]),
            &json!(["uverbs0"])
        )
    );
    let virtual_function = device(&topology, "0000:3b:00.2");
    assert_eq!(virtual_function["physfn"], "0000:3b:00.0");
    assert_eq!(virtual_function["vfio"], "vfio3");
    let gpu = device(&topology, "0000:3a:01.0");
    assert_eq!(gpu["kind"], "gpu");
    assert_eq!(gpu["drm"], json!({"card": "card1", "render": "renderD129"}));
    assert_eq!(gpu["kfd"], 3);
}

#[test]
fn virtio_interfaces_are_one_level_down() {
    let tree = Tree::new();
    tree.add(
        "pci0000:00/0000:00:03.0",
        &Spec {
            class: 0x02_00_00,
            vendor: 0x1af4,
            device: 0x1041,
            driver: Some("virtio-pci"),
            numa: -1,
        },
    );
    tree.write(
        "devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/mtu",
        "1500",
    );
    assert_eq!(
        device(&json(&tree.scan()), "0000:00:03.0")["net"],
        json!(["eth0"])
    );
}

#[test]
fn a_node_of_an_accelerator_driver_decides_and_the_class_is_a_hint() {
    let tree = Tree::new();
    let cases = [
        // (class, driver, folder and entry, kind, accel); a node is named as its entry, or after the space
        (
            0x11_80_00,
            Some("amdxdna"),
            "accel/accel0 accel/accel0",
            "accelerator",
            json!(["accel/accel0"]),
        ),
        (
            0x08_80_00,
            Some("apex"),
            "apex/apex_0",
            "accelerator",
            json!(["apex_0"]),
        ),
        (
            0x0b_40_00,
            Some("hailo"),
            "hailo_chardev/hailo0",
            "accelerator",
            json!(["hailo0"]),
        ),
        (
            0x12_00_00,
            Some("hailo1x"),
            "hailo1x/h1x-0",
            "accelerator",
            json!(["h1x-0"]),
        ),
        (
            0xff_00_00,
            Some("tpu_v4"),
            "accel/accel12 accel12",
            "accelerator",
            json!(["accel12"]),
        ),
        (
            0x12_00_00,
            Some("habanalabs"),
            "accel/accel_controlD0 accel/accel_controlD0",
            "accelerator",
            json!([]),
        ),
        (
            0x11_80_00,
            Some("amdxdna"),
            "accel/other",
            "other",
            json!([]),
        ),
        (
            0x11_80_00,
            Some("amdxdna"),
            "misc/accel0",
            "other",
            json!([]),
        ),
        (
            0x11_80_00,
            None,
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x01_06_01,
            Some("ahci"),
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x04_03_00,
            Some("snd_hda_intel"),
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x05_02_00,
            Some("cxl_pci"),
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x06_80_00,
            Some("bridge"),
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x0c_03_30,
            Some("xhci_hcd"),
            "accel/accel0 accel/accel0",
            "other",
            json!([]),
        ),
        (
            0x02_00_00,
            Some("mlx5_core"),
            "accel/accel0 accel/accel0",
            "nic",
            json!([]),
        ),
        (
            0x03_80_00,
            Some("xe"),
            "accel/accel0 accel/accel0",
            "gpu",
            json!(["accel/accel0"]),
        ),
    ];
    for (number, (class, driver, entry, _, _)) in cases.iter().enumerate() {
        let place = format!("pci0000:00/0000:00:{number:02x}.0");
        tree.add(
            &place,
            &Spec {
                class: *class,
                driver: *driver,
                ..NPU
            },
        );
        let (entry, node) = entry.split_once(' ').unwrap_or((entry, own_name(entry)));
        tree.node(&format!("devices/{place}/{entry}"), node);
    }
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    for (number, (class, _, entry, kind, accel)) in cases.iter().enumerate() {
        let found = device(&topology, &format!("0000:00:{number:02x}.0"));
        assert_eq!(
            (&found["kind"], &found["accel"]),
            (&json!(kind), accel),
            "{class:06x} with {entry}"
        );
    }
    // As for a kind by class: a function with contradictory files is left out.
    tree.write("devices/pci0000:00/0000:00:00.0/class", "0x118001");
    assert_eq!(
        problems(&json(&tree.scan())),
        ["0000:00:00.0/class: differs from the class in uevent"]
    );
}

#[test]
fn an_entry_without_a_node_is_an_accelerator_without_one() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:01.0";
    tree.add(place, &NPU);
    let entry = format!("devices/{place}/accel/accel0");
    fs::create_dir_all(tree.path(&entry)).expect("created");
    let found = |topology: &serde_json::Value| {
        let npu = device(topology, "0000:00:01.0");
        (npu["kind"].clone(), npu["accel"].clone())
    };
    let topology = json(&tree.scan());
    assert_eq!(found(&topology), (json!("accelerator"), json!([])));
    assert_eq!(topology["problems"], json!([]));
    tree.write(&format!("{entry}/uevent"), "MAJOR=261\nMINOR=0");
    let topology = json(&tree.scan());
    assert_eq!(found(&topology), (json!("accelerator"), json!([])));
    assert_eq!(
        problems(&topology),
        [r#"0000:00:01.0/accel/accel0/uevent: unexpected content "MAJOR=261\nMINOR=0""#]
    );
}

#[test]
fn mediated_devices_are_read_where_a_driver_offers_them() {
    let tree = Tree::new();
    let uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";
    let cases = [
        (GPU, Some("nvidia"), json!([uuid])),
        (GPU, None, json!(null)),
        (GPU, Some("vfio-pci"), json!(null)),
        (NIC, Some("mlx5_core"), json!([uuid])),
        (AMD_GPU, Some("amdgpu"), json!([uuid])),
        (NPU, Some("amdxdna"), json!(null)),
        (BRIDGE, Some("pcieport"), json!(null)),
    ];
    let at = |slot: usize| format!("0000:00:{slot:02x}.0");
    for (slot, (spec, driver, _)) in cases.iter().enumerate() {
        let place = format!("pci0000:00/{}", at(slot));
        let driver = *driver;
        let spec = Spec {
            driver,
            ..spec.clone()
        };
        tree.add(&place, &spec);
        for dir in ["mdev_supported_types/nvidia-63", uuid, "83b8f4f2", "power"] {
            tree.write(&format!("devices/{place}/{dir}/name"), "GRID T4-1Q");
        }
    }
    // A driver with types of which no device exists, and a driver without types.
    let (unused, without) = (at(0x1e), at(0x1f));
    for address in [&unused, &without] {
        tree.add(&format!("pci0000:00/{address}"), &GPU);
    }
    let types = format!("devices/pci0000:00/{unused}/mdev_supported_types");
    fs::create_dir_all(tree.path(&types)).expect("created");
    tree.write(&format!("devices/pci0000:00/{without}/{uuid}/name"), "");
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    for (slot, (.., expected)) in cases.iter().enumerate() {
        assert_eq!(&device(&topology, &at(slot))["mdevs"], expected, "{slot}");
    }
    assert_eq!(device(&topology, &unused)["mdevs"], json!([]));
    assert_eq!(device(&topology, &without)["mdevs"], json!(null));
}

#[test]
fn a_virtual_function_of_a_nic_has_no_mediated_devices() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:02.0";
    tree.add(place, &NIC);
    tree.link(&format!("devices/{place}/physfn"), "../0000:00:01.0");
    tree.write(&format!("devices/{place}/mdev_supported_types/x/name"), "");
    assert_eq!(
        device(&json(&tree.scan()), "0000:00:02.0")["mdevs"],
        json!(null)
    );
}

#[test]
fn virtio_displays_are_one_level_down() {
    let tree = Tree::new();
    let display = Spec {
        class: 0x03_00_00,
        vendor: 0x1af4,
        device: 0x1050,
        driver: Some("virtio-pci"),
        numa: -1,
    };
    for (slot, dir) in [(1, "virtio5/drm"), (2, "drm")] {
        let place = format!("pci0000:00/0000:00:{slot:02x}.0");
        tree.add(&place, &display);
        for name in ["card0", "renderD128"] {
            tree.write(&format!("devices/{place}/{dir}/{name}/dev"), "226:0");
        }
    }
    let topology = json(&tree.scan());
    for address in ["0000:00:01.0", "0000:00:02.0"] {
        let expected = json!({"card": "card0", "render": "renderD128"});
        assert_eq!(device(&topology, address)["drm"], expected);
    }
}

#[test]
fn user_space_drivers_are_read_with_what_they_made() {
    let tree = Tree::new();
    for (slot, driver) in [
        (1, "vfio-pci"),
        (2, "vfio-pci"),
        (3, "vfio-pci"),
        (4, "igb_uio"),
        (5, "mlx5_core"),
    ] {
        let place = format!("pci0000:00/0000:00:{slot:02x}.0");
        tree.add(
            &place,
            &Spec {
                driver: Some(driver),
                ..NIC
            },
        );
        let group = format!("../../../kernel/iommu_groups/{slot}");
        tree.link(&format!("devices/{place}/iommu_group"), &group);
    }
    // The kernel names a group only if it made it for vfio without an IOMMU, or if a driver named it.
    tree.write("kernel/iommu_groups/1/name", "vfio-noiommu");
    tree.write("kernel/iommu_groups/2/name", "fsl-mc");
    tree.write("kernel/iommu_groups/5/name", "vfio-noiommu");
    fs::create_dir_all(tree.path("kernel/iommu_groups/3")).expect("created");
    let uio = "devices/pci0000:00/0000:00:04.0/uio";
    tree.write(&format!("{uio}/uio10/dev"), "235:10");
    tree.write(&format!("{uio}/uio9/dev"), "235:9");
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    let found = [1, 2, 3, 4, 5].map(|slot| {
        let found = device(&topology, &format!("0000:00:{slot:02x}.0"));
        (found["noiommu"].clone(), found["uio"].clone())
    });
    assert_eq!(
        found,
        [
            (json!(true), json!([])),
            (json!(false), json!([])),
            (json!(false), json!([])),
            (json!(false), json!(["uio9", "uio10"])),
            (json!(false), json!([])),
        ]
    );
}

#[test]
fn a_name_that_is_not_text_is_reported_and_hides_nothing_else() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:01.0";
    tree.add(place, &NIC);
    tree.write(&format!("devices/{place}/net/ens1/mtu"), "1500");
    let odd = tree
        .path(&format!("devices/{place}/net"))
        .join(OsStr::from_bytes(b"eth\xff0"));
    fs::create_dir_all(odd).expect("created");
    let topology = json(&tree.scan());
    let nic = device(&topology, "0000:00:01.0");
    assert_eq!(nic["net"], json!(["ens1"]));
    assert_eq!(nic["invalid_names"], json!(["net/eth\\xff0"]));
    assert_eq!(
        problems(&topology),
        ["0000:00:01.0/net: eth\\xff0 is not UTF-8, so it is ignored"]
    );
}

#[test]
fn config_is_never_opened() {
    let tree = Tree::new();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("inotify");
    for (index, spec) in [GPU, NIC, AMD_GPU, BRIDGE].iter().enumerate() {
        let place = format!("devices/pci0000:00/0000:00:0{index}.0");
        tree.add(place.trim_start_matches("devices/"), spec);
        for file in ["config", "class"] {
            tree.write(&format!("{place}/{file}"), &format!("0x{:06x}", spec.class));
        }
        inotify::add_watch(
            &watch,
            tree.path(&format!("{place}/config")),
            inotify::WatchFlags::OPEN,
        )
        .expect("watched");
    }
    assert_eq!(json(&tree.scan())["problems"], json!([]));
    let mut buffer = [0; 4096];
    assert_eq!(
        rustix::io::read(&watch, &mut buffer),
        Err(rustix::io::Errno::AGAIN),
        "config was opened"
    );
    // The watch detects opened files.
    fs::read(tree.path("devices/pci0000:00/0000:00:00.0/config")).expect("read");
    assert!(rustix::io::read(&watch, &mut buffer).is_ok());
}

#[test]
fn trees_without_uevent_are_read_from_single_files_or_modalias() {
    let tree = Tree::new();
    for name in ["0000:00:01.0", "0000:00:02.0"] {
        tree.add(&format!("pci0000:00/{name}"), &NIC);
        fs::remove_file(tree.path(&format!("devices/pci0000:00/{name}/uevent"))).expect("removed");
    }
    let second = "devices/pci0000:00/0000:00:02.0";
    tree.link(&format!("{second}/driver"), "../../../bus/pci/drivers/i40e");
    for file in ["vendor", "device"] {
        fs::remove_file(tree.path(&format!("{second}/{file}"))).expect("removed");
    }
    tree.write(
        &format!("{second}/modalias"),
        "pci:v00008086d000037D2sv000015D9sd000037D2bc02sc07i00",
    );
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    assert_eq!(device(&topology, "0000:00:01.0")["vendor_id"], "0x15b3");
    let second = device(&topology, "0000:00:02.0");
    assert_eq!(
        (&second["vendor_id"], &second["driver"]),
        (&json!("0x8086"), &json!("i40e"))
    );
    assert_eq!(second["subsystem_vendor"], "0x15d9");
}

#[test]
fn numa_nodes_have_socket_cpus_memory_and_distances() {
    let topology = json(&Tree::new().scan());
    assert_eq!(
        topology["numa_nodes"],
        json!([
            {"id": 0, "socket": 0, "cpus": "0-7", "memory_bytes": 1 << 20, "distances": [10, 21]},
            {"id": 1, "socket": 1, "cpus": "8-15", "memory_bytes": 1 << 20, "distances": [21, 10]},
        ])
    );
}
