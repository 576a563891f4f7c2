//! After any events in any order the topology is the one that a full scan finds.

mod tree;

use std::collections::BTreeMap;
use std::fs;

use dra_topology::{Topology, Uevent};
use proptest::prelude::*;
use proptest::sample::Index;
use tree::{AMD_GPU, BRIDGE, GPU, NIC, Spec, Tree, address, event, json};

/// One thing that happens to a host.
#[derive(Debug, Clone)]
enum Step {
    Plug {
        under: Index,
        kind: usize,
        numa: i32,
    },
    Unplug(Index),
    /// As the kernel does it: one event per function, the deepest first.
    UnplugInOrder(Index),
    Bind(Index, bool),
    Interface(Index, bool),
    NumaNode(Index, i32),
    VirtualFunctions(Index, u8),
    Damage(Index, bool),
    List(Index, bool),
    Rescan,
    Noise(Uevent),
}

fn step() -> impl Strategy<Value = Step> {
    let noise = (
        "(add|remove|change)",
        "/[ -~]{0,20}",
        "(pci|net|drm|block|usb)",
    );
    prop_oneof![
        6 => (any::<Index>(), 0_usize..5, -1..3).prop_map(|(under, kind, numa)| Step::Plug { under, kind, numa }),
        2 => any::<Index>().prop_map(Step::Unplug),
        1 => any::<Index>().prop_map(Step::UnplugInOrder),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Bind(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Interface(at, on)),
        2 => (any::<Index>(), -1..3).prop_map(|(at, numa)| Step::NumaNode(at, numa)),
        1 => (any::<Index>(), 0_u8..4).prop_map(|(at, count)| Step::VirtualFunctions(at, count)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Damage(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::List(at, on)),
        1 => Just(Step::Rescan),
        1 => noise.prop_map(|(action, devpath, subsystem)| Step::Noise(Uevent { action, devpath, subsystem })),
    ]
}

/// A host and what was done to it, so that every step is a possible one.
struct Host {
    tree: Tree,
    functions: BTreeMap<String, Spec>,
    next_bus: u16,
}

impl Host {
    fn new() -> Self {
        let tree = Tree::new();
        for root in ["pci0000:00", "pci0000:80"] {
            tree.write(
                &format!("devices/{root}/pci_bus/{}/cpulistaffinity", &root[3..]),
                "8-15",
            );
        }
        Self {
            tree,
            functions: BTreeMap::new(),
            next_bus: 1,
        }
    }

    fn pick(&self, at: &Index) -> Option<(String, Spec)> {
        let all: Vec<_> = self.functions.iter().collect();
        (!all.is_empty())
            .then(|| at.get(&all))
            .map(|(place, spec)| ((*place).clone(), (*spec).clone()))
    }

    fn below(&self, place: &str) -> Vec<String> {
        let prefix = format!("{place}/");
        self.functions
            .keys()
            .filter(|other| other.starts_with(&prefix))
            .cloned()
            .collect()
    }

    fn add(&mut self, place: String, spec: Spec) {
        self.tree.add(&place, &spec);
        self.functions.insert(place, spec);
    }

    fn forget(&mut self, place: &str) {
        for below in self.below(place) {
            self.functions.remove(&below);
        }
        self.functions.remove(place);
        self.tree.remove(place);
    }

    fn update(&mut self, place: &str, spec: Spec) {
        self.tree.describe(place, &spec);
        self.functions.insert(place.into(), spec);
    }

    /// Does it and gives back what the kernel would announce.
    fn happen(&mut self, step: &Step) -> Vec<Uevent> {
        match step {
            Step::Plug { under, kind, numa } => self.plug(under, *kind, *numa),
            Step::Unplug(at) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                self.forget(&place);
                vec![event("remove", "pci", &place)]
            }),
            Step::UnplugInOrder(at) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let mut all = self.below(&place);
                all.sort_by_key(|below| std::cmp::Reverse(below.len()));
                all.push(place.clone());
                self.forget(&place);
                all.iter()
                    .map(|gone| event("remove", "pci", gone))
                    .collect()
            }),
            Step::Bind(at, bound) => self.pick(at).map_or_else(Vec::new, |(place, spec)| {
                self.update(
                    &place,
                    Spec {
                        driver: bound.then_some("vfio-pci"),
                        ..spec
                    },
                );
                vec![event(if *bound { "bind" } else { "unbind" }, "pci", &place)]
            }),
            Step::Interface(at, there) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let folder = self.tree.path(&format!("devices/{place}/net"));
                if *there {
                    fs::create_dir_all(folder.join("eth0")).expect("created");
                } else if folder.exists() {
                    fs::remove_dir_all(folder).expect("removed");
                }
                vec![event(
                    if *there { "add" } else { "remove" },
                    "net",
                    &format!("{place}/net/eth0"),
                )]
            }),
            Step::NumaNode(at, numa) => self.pick(at).map_or_else(Vec::new, |(place, spec)| {
                self.update(
                    &place,
                    Spec {
                        numa: *numa,
                        ..spec
                    },
                );
                vec![event("change", "pci", &place)]
            }),
            Step::VirtualFunctions(at, count) => self.virtual_functions(at, *count),
            Step::Damage(at, damaged) => self.pick(at).map_or_else(Vec::new, |(place, spec)| {
                self.tree.describe(&place, &spec);
                if *damaged {
                    self.tree
                        .write(&format!("devices/{place}/class"), "garbage");
                    self.tree
                        .write(&format!("devices/{place}/uevent"), "garbage");
                }
                vec![event("change", "pci", &place)]
            }),
            Step::List(at, listed) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let own = place.rsplit('/').next().expect("a name");
                let link = self.tree.path(&format!("bus/pci/devices/{own}"));
                if *listed && !link.is_symlink() {
                    self.tree.link(
                        &format!("bus/pci/devices/{own}"),
                        &format!("../../../devices/{place}"),
                    );
                } else if !listed && link.is_symlink() {
                    fs::remove_file(link).expect("removed");
                }
                vec![event("change", "pci", &place)]
            }),
            Step::Rescan => vec![],
            Step::Noise(noise) => vec![noise.clone()],
        }
    }

    fn plug(&mut self, under: &Index, kind: usize, numa: i32) -> Vec<Uevent> {
        let bridges = self
            .functions
            .iter()
            .filter(|(_, spec)| spec.class == BRIDGE.class);
        let mut parents: Vec<String> = bridges.map(|(place, _)| place.clone()).collect();
        parents.extend(["pci0000:00".into(), "pci0000:80".into()]);
        let parent = under.get(&parents);
        let Ok(bus) = u8::try_from(self.next_bus) else {
            return vec![];
        };
        self.next_bus += 1;
        let spec = [BRIDGE, BRIDGE, GPU, NIC, AMD_GPU][kind].clone();
        let place = format!("{parent}/0000:{bus:02x}:00.0");
        if spec.vendor == AMD_GPU.vendor {
            let properties = format!(
                "simd_count 304\nlocation_id {}\ndomain 0",
                u32::from(bus) << 8
            );
            self.tree.write(
                &format!("class/kfd/kfd/topology/nodes/{bus}/properties"),
                &properties,
            );
        }
        self.add(place.clone(), Spec { numa, ..spec });
        vec![event("add", "pci", &place)]
    }

    /// Replaces the virtual functions of a NIC; only the last event names the physical function.
    fn virtual_functions(&mut self, at: &Index, count: u8) -> Vec<Uevent> {
        let Some((place, spec)) = self
            .pick(at)
            .filter(|(place, spec)| spec.vendor == NIC.vendor && place.ends_with(":00.0"))
        else {
            return vec![];
        };
        let (parent, own) = place.rsplit_once('/').expect("a parent");
        let stem = own.trim_end_matches('0');
        let mut events = vec![];
        for index in 0..4 {
            let function = format!("{parent}/{stem}{}", index + 1);
            let link = self.tree.path(&format!("devices/{place}/virtfn{index}"));
            if link.is_symlink() {
                fs::remove_file(&link).expect("removed");
            }
            if index < count {
                if !self.functions.contains_key(&function) {
                    self.add(function.clone(), spec.clone());
                    self.tree
                        .link(&format!("devices/{function}/physfn"), &format!("../{own}"));
                    events.push(event("add", "pci", &function));
                }
                self.tree.link(
                    &format!("devices/{place}/virtfn{index}"),
                    &format!("../{stem}{}", index + 1),
                );
            } else if self.functions.contains_key(&function) {
                self.forget(&function);
                events.push(event("remove", "pci", &function));
            }
        }
        self.tree
            .write(&format!("devices/{place}/sriov_totalvfs"), "4");
        self.tree
            .write(&format!("devices/{place}/sriov_numvfs"), &count.to_string());
        if events.is_empty() {
            events.push(event("change", "pci", &place));
        }
        events
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn incremental_is_a_full_scan(steps in proptest::collection::vec(step(), 1..24)) {
        let mut host = Host::new();
        let mut live = host.tree.scan();
        for step in &steps {
            let events = host.happen(step);
            if matches!(step, Step::Rescan) {
                prop_assert!(live.rescan().expect("a rescan").is_empty(), "a rescan found what the events had not told");
            }
            for event in &events {
                live.apply(event).expect("applied");
            }
            prop_assert_eq!(json(&live), json(&host.tree.scan()), "after {:?}", step);
        }
    }

    #[test]
    fn events_in_any_order_and_number_end_the_same(
        steps in proptest::collection::vec(step(), 1..16),
        order in proptest::collection::vec(any::<Index>(), 0..40),
    ) {
        let mut host = Host::new();
        let mut live = host.tree.scan();
        let events: Vec<_> = steps.iter().flat_map(|step| host.happen(step)).collect();
        // Late, repeated and shuffled, each at least once.
        for event in order.iter().filter(|_| !events.is_empty()).map(|at| at.get(&events)).chain(&events) {
            live.apply(event).expect("applied");
        }
        prop_assert_eq!(json(&live), json(&host.tree.scan()));
    }
}

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
fn the_problems_of_what_was_unplugged_go_with_it() {
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
fn a_sleeping_device_is_not_asked_for_its_link_but_keeps_it() {
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
fn cpus_that_come_and_go_are_seen() {
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
fn a_rescan_tells_what_the_events_did_not() {
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
    // Where sysfs has gone altogether, what was known stays.
    let before = json(&live);
    fs::remove_dir_all(tree.root()).expect("removed");
    live.rescan().expect_err("no sysfs");
    live.apply(&event("change", "pci", "pci0000:00/0000:00:02.0"))
        .expect_err("no sysfs");
    assert_eq!(json(&live), before);
}
