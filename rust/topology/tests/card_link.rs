//! The link between a card and its slot, which is not that of the function if the card has a switch of its own.

mod tree;

use std::fs;

use serde_json::{Value, json};
use tree::{AMD_GPU, BRIDGE, GPU, NIC, Spec, Tree, device, json, problems};

const INTEL: u16 = 0x8086;

/// `(generation, width, max_generation, max_width)` of the function at the end of a chain of ports, root port first.
fn card_link(root: &str, chain: &[(u16, [&str; 4])]) -> Value {
    let tree = Tree::new();
    let own = build(&tree, root, chain);
    let topology = json(&tree.scan());
    assert_eq!(topology["problems"], json!([]));
    device(&topology, &own)["card_link"].clone()
}

/// Adds ports and, as the last one, a GPU, each with the values of its link; returns the GPU's address.
fn build(tree: &Tree, root: &str, chain: &[(u16, [&str; 4])]) -> String {
    let mut place = root.to_owned();
    for (level, (vendor, link)) in chain.iter().enumerate() {
        let spec = if level + 1 == chain.len() {
            &GPU
        } else {
            &BRIDGE
        };
        place = format!("{place}/{}:{level:02x}:00.0", &root[root.len() - 7..][..4]);
        tree.add(
            &place,
            &Spec {
                vendor: *vendor,
                ..spec.clone()
            },
        );
        let files = [
            "current_link_speed",
            "current_link_width",
            "max_link_speed",
            "max_link_width",
        ];
        for (file, value) in files
            .iter()
            .zip(link)
            .filter(|(_, value)| !value.is_empty())
        {
            tree.write(&format!("devices/{place}/{file}"), value);
        }
    }
    place.rsplit('/').next().expect("a name").to_owned()
}

fn link(generation: u8, width: u8, max_generation: u8, max_width: u8) -> Value {
    json!({"generation": generation, "width": width, "max_generation": max_generation, "max_width": max_width})
}

const GEN1_X1: [&str; 4] = ["2.5 GT/s PCIe", "1", "2.5 GT/s PCIe", "1"];
const GEN3_X16: [&str; 4] = ["8.0 GT/s PCIe", "16", "8.0 GT/s PCIe", "16"];
const GEN4_X8: [&str; 4] = ["16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8"];
const GEN4_X16: [&str; 4] = ["16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16"];
const GEN5_X16: [&str; 4] = ["32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"];

#[test]
fn without_an_own_switch_it_is_that_of_function_and_slot() {
    let found = card_link("pci0000:00", &[(INTEL, GEN4_X8), (0x10de, GEN5_X16)]);
    assert_eq!(found, link(5, 16, 4, 8));
    // A switch of the host, and a root port of the card's vendor.
    let found = card_link(
        "pci0000:00",
        &[
            (0x10de, GEN5_X16),
            (0x1000, GEN5_X16),
            (0x1000, GEN4_X16),
            (0x10de, GEN5_X16),
        ],
    );
    assert_eq!(found, link(5, 16, 4, 16));
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, GEN4_X8), (INTEL, GEN4_X16)]),
        link(4, 16, 4, 8)
    );
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, GEN4_X16)]),
        link(4, 16, 4, 16)
    );
}

#[test]
fn a_switch_inside_the_card_is_a_part_of_it() {
    // The endpoint and the inner port of an Intel Arc report the slowest link that exists.
    let arc = [
        (INTEL, GEN4_X16),
        (INTEL, GEN4_X16),
        (INTEL, GEN1_X1),
        (INTEL, GEN1_X1),
    ];
    assert_eq!(card_link("pci0000:00", &arc), link(4, 16, 4, 16));
    // The inner link of an AMD card is faster than the slot.
    let navi = [
        (0x1022, GEN4_X8),
        (0x1002, GEN5_X16),
        (0x1002, GEN5_X16),
        (0x1002, GEN5_X16),
    ];
    assert_eq!(card_link("pci0000:00", &navi), link(5, 16, 4, 8));
    // Behind a switch of the host, and behind VMD, whose root bus has root ports of its own.
    let behind = [
        (INTEL, GEN5_X16),
        (0x1000, GEN5_X16),
        (0x1000, GEN3_X16),
        (0x1002, GEN4_X16),
        (0x1002, GEN5_X16),
        (0x1002, GEN5_X16),
    ];
    assert_eq!(card_link("pci0000:00", &behind), link(4, 16, 3, 16));
    assert_eq!(
        card_link("pci0000:e2/0000:e2:00.5/pci10000:e0", &arc),
        link(4, 16, 4, 16)
    );
}

#[test]
fn at_most_two_bridges_belong_to_the_card() {
    // A Thunderbolt controller has Intel's vendor id, too; an Arc behind it ends at its own switch.
    let chain = [
        (INTEL, GEN5_X16),
        (INTEL, GEN3_X16),
        (INTEL, GEN3_X16),
        (INTEL, GEN4_X8),
        (INTEL, GEN1_X1),
        (INTEL, GEN1_X1),
    ];
    assert_eq!(card_link("pci0000:00", &chain), link(4, 8, 3, 8));
    let root_port_only = [(INTEL, GEN4_X8), (INTEL, GEN4_X16), (INTEL, GEN1_X1)];
    assert_eq!(card_link("pci0000:00", &root_port_only), link(4, 16, 4, 8));
}

#[test]
fn what_one_side_does_not_report_the_other_decides() {
    const NOTHING: [&str; 4] = ["", "", "", ""];
    const UNKNOWN: [&str; 4] = ["Unknown", "0", "Unknown", "255"];
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, NOTHING), (0x10de, NOTHING)]),
        json!(null)
    );
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, GEN4_X8), (0x10de, NOTHING)]),
        json!(null)
    );
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, UNKNOWN), (0x10de, GEN5_X16)]),
        link(5, 16, 5, 16)
    );
    let function_only = ["Unknown", "0", "32.0 GT/s PCIe", "255"];
    assert_eq!(
        card_link("pci0000:00", &[(INTEL, GEN4_X8), (0x10de, function_only)]),
        json!({"generation": null, "width": null, "max_generation": 4, "max_width": 8})
    );
    assert_eq!(
        card_link(
            "pci0000:00",
            &[
                (0x1022, GEN4_X8),
                (0x1002, NOTHING),
                (0x1002, NOTHING),
                (0x1002, GEN5_X16)
            ]
        ),
        json!(null)
    );
}

#[test]
fn a_damaged_port_is_a_problem_of_the_function_below() {
    let tree = Tree::new();
    let own = build(&tree, "pci0000:00", &[(INTEL, GEN4_X8), (0x10de, GEN5_X16)]);
    tree.write("devices/pci0000:00/0000:00:00.0/max_link_width", "wide");
    let topology = json(&tree.scan());
    assert_eq!(device(&topology, &own)["card_link"], link(5, 16, 4, 16));
    assert_eq!(
        problems(&topology),
        ["0000:01:00.0/../max_link_width: unexpected content \"wide\""]
    );
}

#[test]
fn the_ports_above_a_suspended_function_are_not_read() {
    let tree = Tree::new();
    let chain = [
        (0x1022, GEN4_X8),
        (0x1002, GEN5_X16),
        (0x1002, GEN5_X16),
        (0x1002, GEN5_X16),
    ];
    let own = build(&tree, "pci0000:00", &chain);
    let mut live = tree.scan();
    let function = "pci0000:00/0000:00:00.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";
    tree.write(
        &format!("devices/{function}/power/runtime_status"),
        "suspended",
    );
    // Reading it would be reported.
    tree.write("devices/pci0000:00/0000:00:00.0/max_link_width", "wide");
    fs::remove_file(tree.path(&format!("devices/{function}/../vendor"))).expect("removed");
    live.apply(&tree::event("change", "pci", function))
        .expect("applied");
    let topology = json(&live);
    assert_eq!(device(&topology, &own)["card_link"], link(5, 16, 4, 8));
    assert_eq!(topology["problems"], json!([]));
    assert_eq!(device(&json(&tree.scan()), &own)["card_link"], json!(null));
}

#[test]
fn every_supported_kind_has_it() {
    for spec in [GPU, NIC, AMD_GPU] {
        let tree = Tree::new();
        let own = build(&tree, "pci0000:00", &[(INTEL, GEN4_X8), (0x1234, GEN5_X16)]);
        tree.describe("pci0000:00/0000:00:00.0/0000:01:00.0", &spec);
        assert_eq!(
            device(&json(&tree.scan()), &own)["card_link"],
            link(5, 16, 4, 8)
        );
    }
}
