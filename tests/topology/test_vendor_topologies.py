"""Recorded topology files of real GPU machines: the nearest devices are those of the vendor's documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.topology import DeviceKind, Distance, PciFunction, Topology, scan
from dra_simulate import build, profiles
from topology.conftest import Machine


@pytest.fixture
def vendor_host(machine: Machine) -> Callable[[str], Topology]:
    def read(name: str) -> Topology:
        topology = scan(machine(name), distances=True)
        assert topology.problems == ()
        return topology

    return read


def of_kind(topology: Topology, kind: DeviceKind) -> list[PciFunction]:
    return [device for device in topology.relevant if device.kind is kind]


def nearest(topology: Topology, device: PciFunction, others: list[PciFunction]) -> list[str]:
    """The others at the smallest distance."""
    levels = list(Distance)
    distances = {
        other.pci_address: topology.distance(device.pci_address, other.pci_address)
        for other in others
        if other is not device
    }
    least = min(levels.index(distance) for distance in distances.values() if distance)
    return [address for address, distance in distances.items() if distance is levels[least]]


def test_dgx2_has_nested_pairs_of_gpus(vendor_host: Callable[[str], Topology]) -> None:
    topology = vendor_host("hwloc-dgx2")
    gpus = of_kind(topology, DeviceKind.GPU)
    assert len(gpus) == 16
    # The documented topology: two GPUs per switch, two of these below another switch, two of those per socket.
    assert Counter(topology.distances.values()) == {
        Distance.PIX: 8,
        Distance.PXB: 16,
        Distance.NODE: 32,
        Distance.SYS: 64,
    }
    assert Counter(gpu.pcie_switch for gpu in gpus) == dict.fromkeys(
        ("0000:2c:00.0", "0000:4f:00.0", "0000:af:00.0", "0000:d8:00.0"), 4
    )
    assert topology.distance("0000:34:00.0", "0000:36:00.0") is Distance.PIX
    assert topology.distance("0000:34:00.0", "0000:39:00.0") is Distance.PXB
    assert topology.distance("0000:34:00.0", "0000:57:00.0") is Distance.NODE
    assert topology.distance("0000:34:00.0", "0000:b7:00.0") is Distance.SYS
    assert Counter(gpu.numa_node for gpu in gpus) == {0: 8, 1: 8}
    assert sum(device.class_ == "0x068000" for device in topology.devices) >= 6, "NVSwitches are found, as other"


def test_mi300x_has_a_nic_for_each_gpu(vendor_host: Callable[[str], Topology]) -> None:
    topology = vendor_host("rccl-mi300x")
    gpus, nics = of_kind(topology, DeviceKind.GPU), of_kind(topology, DeviceKind.NIC)
    assert (len(gpus), len(nics)) == (8, 8)
    assert {gpu.class_ for gpu in gpus} == {"0x120000"}, "the class is accelerator, by the vendor it is a GPU"
    for gpu in gpus:
        [nic] = [nic for nic in nics if nic.pcie_switch == gpu.pcie_switch]
        assert nearest(topology, gpu, nics) == [nic.pci_address]
        # The path also includes the switch inside the module of the GPU.
        assert topology.distance(gpu.pci_address, nic.pci_address) is Distance.PXB
    assert topology.by_address["0000:0c:00.0"].pcie_switch == topology.by_address["0000:07:00.0"].pcie_switch
    assert all(gpu.link and (gpu.link.generation, gpu.link.width) == (5, 16) for gpu in gpus)


def test_azure_ndv5_pairs_each_gpu_with_one_nic(vendor_host: Callable[[str], Topology]) -> None:
    topology = vendor_host("azure-ndv5")
    gpus, nics = of_kind(topology, DeviceKind.GPU), of_kind(topology, DeviceKind.NIC)
    pairs = {gpu.pci_address: nearest(topology, gpu, nics) for gpu in gpus}
    assert pairs == {
        f"{gpu}:00:00.0": [f"01{number:02}:00:00.0"]
        for number, gpu in enumerate(("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c"), 1)
    }
    assert Counter(topology.distances.values()) == {Distance.PIX: 8, Distance.NODE: 48, Distance.SYS: 64}


def test_aws_p4d_has_two_gpus_and_a_nic_per_switch(vendor_host: Callable[[str], Topology]) -> None:
    topology = vendor_host("aws-p4d")
    switches: dict[str | None, Counter[DeviceKind]] = {}
    for device in topology.relevant:
        switches.setdefault(device.pcie_switch, Counter())[device.kind] += 1
    assert list(switches.values()) == [Counter({DeviceKind.GPU: 2, DeviceKind.NIC: 1})] * 4
    for gpu in of_kind(topology, DeviceKind.GPU):
        [nic] = nearest(topology, gpu, of_kind(topology, DeviceKind.NIC))
        assert nic.split(":")[1] == gpu.pci_address.split(":")[1]


RECORDED_IN = {
    "dgx-2": ("hwloc-dgx2", 16),
    "mi300x": ("rccl-mi300x", 16),
    "azure-ndv5": ("azure-ndv5", 16),
    "aws-p4d": ("aws-p4d", 12),
}


@pytest.mark.parametrize("profile", RECORDED_IN)
def test_a_profile_has_the_addresses_nodes_and_links_of_its_recording(
    profile: str, vendor_host: Callable[[str], Topology], tmp_path: Path
) -> None:
    name, count = RECORDED_IN[profile]
    recorded = vendor_host(name)
    simulated = scan(Host(sysfs=build(profile, tmp_path / "host").sysfs), distances=True).by_address
    compared = 0
    for device in recorded.relevant:
        own = simulated[device.pci_address]
        assert (own.class_, own.kind, own.numa_node) == (device.class_, device.kind, device.numa_node)
        if device.link is not None:
            assert own.link is not None
            assert (own.link.generation, own.link.width) == (device.link.generation, device.link.width)
        if device.vendor_id not in ("0x0000", "0xffff"):
            assert (own.vendor_id, own.device_id) == (device.vendor_id, device.device_id)
        compared += 1
    assert compared == count
    if profile == "dgx-2":
        # This one is recorded with all its bridges.
        assert {gpu.pci_address: gpu.parents for gpu in of_kind(recorded, DeviceKind.GPU)} == {
            gpu.pci_address: gpu.parents for gpu in simulated.values() if gpu.kind is DeviceKind.GPU
        }


def test_a_tray_of_a_gb200_has_memory_nodes_and_a_clique(tmp_path: Path) -> None:
    topology = scan(build("gb200-nvl", tmp_path / "host"), distances=True)
    assert topology.problems == ()
    nodes = topology.numa_nodes
    assert (len(nodes), [node.id for node in nodes if node.cpus]) == (34, [0, 1])
    assert [node.id for node in nodes if not node.cpus and node.memory_bytes] == [2, 10, 18, 26]
    gpus = of_kind(topology, DeviceKind.GPU)
    assert [(gpu.pci_address, gpu.numa_node) for gpu in gpus] == [
        ("0008:01:00.0", 0),
        ("0009:01:00.0", 0),
        ("0018:01:00.0", 1),
        ("0019:01:00.0", 1),
    ]
    assert len({gpu.pcie_root for gpu in gpus}) == 4
    assert topology.distance("0008:01:00.0", "0009:01:00.0") is Distance.NODE
    assert topology.distance("0008:01:00.0", "0018:01:00.0") is Distance.SYS


@pytest.mark.parametrize("profile", profiles())
def test_no_simulated_link_is_faster_than_the_slot(profile: str, tmp_path: Path) -> None:
    for device in scan(build(profile, tmp_path / "host")).relevant:
        link = device.card_link
        if link is not None:
            assert (link.generation or 0) <= (link.max_generation or 0), device.pci_address
            assert (link.width or 0) <= (link.max_width or 0), device.pci_address
