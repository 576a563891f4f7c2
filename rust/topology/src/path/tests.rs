use super::*;

fn address(text: &str) -> PciAddress {
    PciAddress::parse(text.as_bytes()).expect("an address")
}

fn path(target: &str) -> Result<DevicePath, &'static str> {
    let own = target.rsplit('/').next().expect("a last component");
    DevicePath::parse(target.as_bytes(), address(own))
}

fn parents(path: &DevicePath) -> Vec<String> {
    path.parents().map(|parent| parent.to_string()).collect()
}

#[test]
fn switch_is_the_second_bridge_of_three() {
    let path =
        path("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0")
            .expect("a path");
    assert_eq!(path.root().to_string(), "pci0000:3a");
    assert_eq!(
        parents(&path),
        ["0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"]
    );
    assert_eq!(path.switch(), Some(address("0000:3b:00.0")));
    assert!(path.is_below(address("0000:3b:00.0")));
    assert!(!path.is_below(address("0000:3d:00.0")));
}

#[test]
fn cascaded_switches_name_the_top_one() {
    let path = path("../../../devices/pci0000:2b/0000:2b:00.0/0000:2c:00.0/0000:2d:04.0/0000:32:00.0/0000:33:00.0/0000:34:00.0")
        .expect("a path");
    assert_eq!(path.switch(), Some(address("0000:2c:00.0")));
}

#[test]
fn no_switch_without_a_downstream_port() {
    for target in [
        "../../../devices/pci0000:00/0000:00:02.0",
        "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0",
        "../../../devices/pci0000:00/0000:00:1c.0/0000:06:00.0/0000:07:00.0",
    ] {
        assert_eq!(path(target).expect("a path").switch(), None, "{target}");
    }
}

#[test]
fn vmd_nests_a_root_bus_but_keeps_the_outer_root() {
    let nvme =
        path("../../../devices/pci0000:e2/0000:e2:00.5/pci10000:e0/10000:e0:01.0/10000:e1:00.0")
            .expect("a path");
    assert_eq!(nvme.root().to_string(), "pci0000:e2");
    assert_eq!(parents(&nvme), ["0000:e2:00.5", "10000:e0:01.0"]);
    assert_eq!(nvme.switch(), None);
    assert_eq!(nvme.below().len(), 3);
}

#[test]
fn platform_prefixes_are_skipped() {
    for prefix in [
        "platform/40000000.pcie",
        "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444531454238",
    ] {
        let path = path(&format!(
            "../../../devices/{prefix}/pci0001:00/0001:00:00.0"
        ))
        .expect("a path");
        assert_eq!(path.root().to_string(), "pci0001:00");
        assert_eq!(parents(&path), Vec::<String>::new());
    }
}

#[test]
fn damaged_links_are_named() {
    let own = address("0000:01:00.0");
    for (target, message) in [
        ("", "below a PCI root bus"),
        ("../../../devices/0000:01:00.0", "below a PCI root bus"),
        ("../../../devices/pci0000:00", "another device"),
        ("../../../devices/pci0000:00/0000:02:00.0", "another device"),
        (
            "../../../devices/pci0000:00/nonsense/0000:01:00.0",
            "not a PCI address",
        ),
        (
            "../../../devices/pci0000:00/0000:01:00.0/",
            "not a PCI address",
        ),
    ] {
        let error = DevicePath::parse(target.as_bytes(), own).expect_err(target);
        assert!(error.contains(message), "{target}: {error}");
    }
    let deep = format!(
        "../../../devices/pci0000:00/{}0000:01:00.0",
        "0000:00:01.0/".repeat(100)
    );
    assert!(
        DevicePath::parse(deep.as_bytes(), own)
            .expect_err("deep")
            .contains("deeper")
    );
}
