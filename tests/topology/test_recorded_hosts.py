"""Scans of recorded machines of other projects, compared with their known properties."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.topology import DeviceKind, Distance, Topology, display_tree, scan, svg
from dra_agent.topology.pci_ids import PciIds
from recordings.pack import DATA
from topology.conftest import Machine

Parents = dict[str, tuple[str, ...]]
ALL = ["hwloc-8ve", "ghw-ryzen1600", "ghw-i7-1270p"]


def read(host: Host) -> Topology:
    return scan(host, distances=True)


def parse_lspci(text: str) -> tuple[Parents, dict[str, tuple[str, str]]]:
    """Return parents, and class with ids, of every function, from the output of `lspci -D -PP -n`."""
    parents, identities = {}, {}
    for line in text.splitlines():
        path, class_code, ids = line.split()[:3]
        domain = path.split(":", 1)[0]
        first, *rest = path.split("/")
        chain = [first, *(f"{domain}:{part}" for part in rest)]
        parents[chain[-1]] = tuple(chain[:-1])
        identities[chain[-1]] = (class_code.rstrip(":"), ids)
    return parents, identities


def listed_parents(topology: Topology) -> Parents:
    """Parents without the bridges that the bus listing lacks, which lspci and lstopo do not show."""
    return {
        device.pci_address: tuple(parent for parent in device.parents if parent in topology.by_address)
        for device in topology.devices
    }


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("arc-inner-switch", {"0000:03:00.0": (4, 16), "0000:07:00.0": (4, 8)}),
        ("navi48-inner-switch", {"0000:03:00.0": (4, 8), "0000:2f:00.0": (4, 2)}),
    ],
)
def test_a_card_with_a_switch_inside_has_the_link_of_its_slot(
    machine: Machine, name: str, cards: dict[str, tuple[int, int]]
) -> None:
    host = machine(name)
    topology = read(host)
    assert topology.problems == ()
    attributes = {device.pci_address: device.attributes for device in collect(host, topology).devices}
    found = {
        address: (values["pcieGeneration"].value, values["pcieWidth"].value) for address, values in attributes.items()
    }
    assert found == cards
    picture = svg.draw(topology, title=name, names=PciIds(b""))
    for address, (generation, width) in cards.items():
        link = topology.by_address[address].card_link
        assert link is not None
        assert (link.max_generation, link.max_width) == (generation, width)
        assert display_tree.link(link) == f"PCIe {generation} x{width}"
        assert f"PCIe {generation} x{width}" in picture


def test_accelerators_of_other_classes_have_the_nodes_of_their_drivers(machine: Machine) -> None:
    host = machine("strix-halo")
    topology = read(host)
    assert topology.problems == ()
    accelerators = [device for device in topology.devices if device.kind is DeviceKind.ACCELERATOR]
    assert {device.pci_address: (device.class_, device.driver, device.accel) for device in accelerators} == {
        "0000:02:00.0": ("0x088000", "apex", ("apex_0",)),
        "0000:c6:00.1": ("0x118000", "amdxdna", ("accel/accel0",)),
    }
    found = {device.pci_address: device for device in collect(host, topology).devices}
    assert [(node.path, node.role) for node in found["0000:02:00.0"].nodes] == [("/dev/apex_0", "accel")]
    assert [(node.path, node.role) for node in found["0000:c6:00.1"].nodes] == [("/dev/accel/accel0", "accel")]


def test_functions_without_an_iommu_and_for_user_space_are_recognized(machine: Machine) -> None:
    topology = read(machine("vfio-noiommu"))
    assert topology.problems == ()
    found = {device.pci_address: (device.driver, device.noiommu, device.uio) for device in topology.relevant}
    assert found == {
        "0000:00:03.0": ("virtio-pci", False, ()),
        "0000:00:05.0": ("vfio-pci", True, ()),
        "0000:00:06.0": ("vfio-pci", True, ()),
        "0000:00:07.0": ("vfio-pci", True, ()),
        "0000:00:08.0": ("igb_uio", False, ("uio0",)),
    }


def test_eight_vector_engines_behind_two_switches(machine: Machine) -> None:
    topology = read(machine("hwloc-8ve"))
    assert topology.problems == ()
    assert Counter(device.kind for device in topology.relevant) == {DeviceKind.ACCELERATOR: 8, DeviceKind.NIC: 4}
    assert Counter(topology.distances.values()) == {Distance.PIX: 21, Distance.NODE: 45}
    switches = Counter(device.pcie_switch for device in topology.relevant)
    assert switches == {"0000:18:00.0": 5, "0000:3b:00.0": 5, "0000:5e:00.0": 2}
    assert [(node.id, node.cpus, node.distances) for node in topology.numa_nodes] == [
        (0, "0-7,16-23", (10, 21)),
        (1, "8-15,24-31", (21, 10)),
    ]
    ethernet = topology.by_address["0000:60:00.0"]
    # This bridge is in the device's path but not in the bus listing.
    assert ethernet.parents == ("0000:5d:02.0", "0000:5e:00.0", "0000:5f:03.0")
    assert ethernet.net == ("enp96s0f0",)
    assert ethernet.sriov is not None
    assert ethernet.sriov.total_vfs == 64
    engine = topology.by_address["0000:3d:00.0"]
    assert engine.driver == "ve_drv"
    assert engine.link is not None
    assert (engine.link.max_generation, engine.link.max_width) == (3, 16)


def test_a_desktop_without_uevent_files(machine: Machine) -> None:
    topology = read(machine("ghw-ryzen1600"))
    assert topology.problems == ()
    kinds = {device.pci_address: device.kind for device in topology.relevant}
    nics = ("0000:03:00.0", "0000:06:00.0", "0000:06:00.1", "0000:08:00.0")
    assert kinds == {"0000:0a:00.0": DeviceKind.GPU, **dict.fromkeys(nics, DeviceKind.NIC)}
    gpu = topology.by_address["0000:0a:00.0"]
    assert gpu.drm is not None
    assert (gpu.vendor_id, gpu.device_id, gpu.drm.card) == ("0x1002", "0x6758", "card0")
    # Every numa_node is -1 there. The CPUs of the root bus all belong to the only node.
    assert {(device.numa_node, device.numa_source) for device in topology.devices} == {(0, "cpulist")}


def test_a_laptop_with_iommu_groups(machine: Machine) -> None:
    topology = read(machine("ghw-i7-1270p"))
    assert topology.problems == ()
    assert len(topology.devices) == 23
    assert all(device.iommu_group is not None for device in topology.devices)
    drive = topology.by_address["0000:04:00.0"]
    assert (drive.kind, drive.driver, drive.iommu_group) == (DeviceKind.NVME, "nvme", 14)


@pytest.mark.parametrize("name", ALL)
def test_every_device_is_where_lspci_shows_it(machine: Machine, name: str) -> None:
    topology = read(machine(name))
    parents, identities = parse_lspci((DATA / f"{name}.lspci").read_text())
    assert listed_parents(topology) == parents
    assert {
        device.pci_address: (device.class_[2:6], f"{device.vendor_id[2:]}:{device.device_id[2:]}")
        for device in topology.devices
    } == identities
    # lspci shows one tree per root bus, which is the bus of the topmost function.
    for device in topology.devices:
        top = (*device.parents, device.pci_address)[0]
        assert device.pcie_root == "pci" + top.rsplit(":", 1)[0]


def test_every_device_is_where_lstopo_shows_it(machine: Machine) -> None:
    topology = read(machine("hwloc-8ve"))
    shown = [line.split() for line in (DATA / "hwloc-8ve.lstopo").read_text().splitlines()]
    assert listed_parents(topology) == {address: tuple(parents) for _, *parents, address in shown}
    assert {device.pci_address: device.pcie_root for device in topology.devices} == {
        address: root for root, *_, address in shown
    }


@pytest.mark.parametrize("recorded_host", ["hwloc-8ve"], indirect=True)
def test_damage_of_some_devices_does_not_affect_others(recorded_host: Host) -> None:
    intact = read(recorded_host)
    listing = recorded_host.sysfs / "bus/pci/devices"
    (listing / "0000:1b:00.0" / "class").write_bytes(b"\x00\xffgarbage")
    (listing / "0000:ff:00.0").symlink_to("../../../devices/pci0000:ff/0000:ff:00.0")
    uevent = listing / "0000:3e:00.0" / "uevent"
    uevent.unlink()
    uevent.symlink_to("uevent")
    for name in ("class", "modalias"):
        (listing / "0000:3e:00.0" / name).unlink()
    topology = read(recorded_host)
    damaged = {"0000:1b:00.0", "0000:3e:00.0"}
    assert [device for device in intact.devices if device.pci_address not in damaged] == list(topology.devices)
    assert [str(problem) for problem in topology.problems] == [
        '0000:1b:00.0/class: unexpected content "\\0\ufffdgarbage"',
        "0000:3e:00.0/uevent: too many levels of symbolic links",
        "0000:3e:00.0/class: no such file or directory",
        "0000:ff:00.0: the link leads nowhere",
    ]


@pytest.mark.parametrize("recorded_host", ["hwloc-8ve"], indirect=True)
def test_an_unreadable_file_is_reported(recorded_host: Host) -> None:
    secret = recorded_host.sysfs / "bus/pci/devices/0000:1b:00.0/numa_node"
    secret.chmod(0)
    if _readable(secret):
        pytest.skip("file modes do not bind this user")
    topology = read(recorded_host)
    assert [str(problem) for problem in topology.problems] == ["0000:1b:00.0/numa_node: permission denied"]
    assert topology.by_address["0000:1b:00.0"].numa_source == "ancestor"


def _readable(path: Path) -> bool:
    try:
        path.read_text()
    except PermissionError:
        return False
    return True
