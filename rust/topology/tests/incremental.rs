//! After any events in any order, the topology equals that of a full scan.

mod tree;

use std::collections::BTreeMap;
use std::fs;

use dra_topology::Uevent;
use proptest::prelude::*;
use proptest::sample::Index;
use tree::{AMD_GPU, BRIDGE, GPU, NIC, NPU, Spec, Tree, event, json};

/// One change of a host.
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
    /// A node of a class of accelerators.
    Accelerator(Index, usize, bool),
    Uio(Index, bool),
    /// A virtual machine's share of a device.
    Mdev(Index, bool),
    Noiommu(Index, bool),
    LinkWidth(Index, u8),
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
        6 => (any::<Index>(), 0..PLUGGED.len(), -1..3).prop_map(|(under, kind, numa)| Step::Plug { under, kind, numa }),
        2 => any::<Index>().prop_map(Step::Unplug),
        1 => any::<Index>().prop_map(Step::UnplugInOrder),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Bind(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Interface(at, on)),
        2 => (any::<Index>(), 0..NODES.len(), any::<bool>()).prop_map(|(at, class, on)| Step::Accelerator(at, class, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Uio(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Mdev(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Noiommu(at, on)),
        2 => (any::<Index>(), 1_u8..5).prop_map(|(at, width)| Step::LinkWidth(at, width)),
        2 => (any::<Index>(), -1..3).prop_map(|(at, numa)| Step::NumaNode(at, numa)),
        1 => (any::<Index>(), 0_u8..4).prop_map(|(at, count)| Step::VirtualFunctions(at, count)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::Damage(at, on)),
        1 => any::<(Index, bool)>().prop_map(|(at, on)| Step::List(at, on)),
        1 => Just(Step::Rescan),
        1 => noise.prop_map(|(action, devpath, subsystem)| Step::Noise(Uevent { action, devpath, subsystem })),
    ]
}

/// The port of a switch inside an AMD card.
const CARD_PORT: Spec = Spec {
    vendor: AMD_GPU.vendor,
    device: 0x1478,
    ..BRIDGE
};
const PLUGGED: [Spec; 8] = [BRIDGE, BRIDGE, CARD_PORT, CARD_PORT, GPU, NIC, AMD_GPU, NPU];
/// A class of accelerators and the name of a node.
const NODES: [(&str, &str); 4] = [
    ("accel", "accel0"),
    ("apex", "apex_0"),
    ("hailo_chardev", "hailo0"),
    ("hailo1x", "h1x-0"),
];

const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

/// A host and its state, so that every step is possible.
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

    fn remove(&mut self, place: &str) {
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

    /// Applies the step and returns the events that the kernel would send.
    fn apply(&mut self, step: &Step) -> Vec<Uevent> {
        match step {
            Step::Plug { under, kind, numa } => self.plug(under, *kind, *numa),
            Step::Unplug(at) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                self.remove(&place);
                vec![event("remove", "pci", &place)]
            }),
            Step::UnplugInOrder(at) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let mut all = self.below(&place);
                all.sort_by_key(|below| std::cmp::Reverse(below.len()));
                all.push(place.clone());
                self.remove(&place);
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
            Step::Interface(at, there) => self.node(at, "net", "eth0", *there),
            Step::Accelerator(at, class, there) => {
                let (class, name) = NODES[*class];
                self.node(at, class, name, *there)
            }
            Step::Uio(at, there) => self.node(at, "uio", "uio0", *there),
            Step::Mdev(at, there) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let uuid = format!("devices/{place}/{UUID}");
                let types = format!("devices/{place}/mdev_supported_types");
                for dir in [uuid, types].map(|below| self.tree.path(&below)) {
                    if *there {
                        fs::create_dir_all(dir).expect("created");
                    } else if dir.exists() {
                        fs::remove_dir_all(dir).expect("removed");
                    }
                }
                let action = if *there { "add" } else { "remove" };
                vec![event(action, "mdev", &format!("{place}/{UUID}"))]
            }),
            Step::Noiommu(at, noiommu) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                let link = self.tree.path(&format!("devices/{place}/iommu_group"));
                if link.is_symlink() {
                    fs::remove_file(&link).expect("removed");
                }
                if *noiommu {
                    self.tree
                        .write("kernel/iommu_groups/0/name", "vfio-noiommu");
                    let group = self.tree.path("kernel/iommu_groups/0");
                    std::os::unix::fs::symlink(group, link).expect("linked");
                }
                vec![event("bind", "pci", &place)]
            }),
            Step::LinkWidth(at, width) => self.pick(at).map_or_else(Vec::new, |(place, _)| {
                self.tree.write(
                    &format!("devices/{place}/max_link_width"),
                    &width.to_string(),
                );
                vec![event("change", "pci", &place)]
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

    /// Adds or removes the node that a driver makes; the event is that of the node alone.
    fn node(&self, at: &Index, class: &str, name: &str, there: bool) -> Vec<Uevent> {
        let Some((place, _)) = self.pick(at) else {
            return vec![];
        };
        let folder = self.tree.path(&format!("devices/{place}/{class}"));
        if there {
            self.tree
                .node(&format!("devices/{place}/{class}/{name}"), name);
        } else if folder.exists() {
            fs::remove_dir_all(folder).expect("removed");
        }
        let action = if there { "add" } else { "remove" };
        vec![event(action, class, &format!("{place}/{class}/{name}"))]
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
        let spec = PLUGGED[kind].clone();
        let place = format!("{parent}/0000:{bus:02x}:00.0");
        if spec.device == AMD_GPU.device {
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
                self.remove(&function);
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
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn incremental_is_a_full_scan(steps in proptest::collection::vec(step(), 1..24)) {
        let mut host = Host::new();
        let mut live = host.tree.scan();
        for step in &steps {
            let events = host.apply(step);
            if matches!(step, Step::Rescan) {
                prop_assert!(live.rescan().expect("a rescan").is_empty(), "a rescan found changes that the events had not caused");
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
        let events: Vec<_> = steps.iter().flat_map(|step| host.apply(step)).collect();
        // Late, repeated and shuffled, each at least once.
        for event in order.iter().filter(|_| !events.is_empty()).map(|at| at.get(&events)).chain(&events) {
            live.apply(event).expect("applied");
        }
        prop_assert_eq!(json(&live), json(&host.tree.scan()));
    }
}
