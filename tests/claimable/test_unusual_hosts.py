"""Hosts whose devices are claimable as they are, although something about them is unusual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from claimable.claims import received
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import Distance, Topology, scan
from dra_simulate import build_machine
from dra_simulate.host_network import HostNetwork, Route, VirtualInterface
from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.models import A100_PCIE, H100_SXM
from dra_simulate.parts.amazon import efa
from dra_simulate.parts.amd import mi210
from dra_simulate.parts.bridges import PLX_SWITCH, port, switch
from dra_simulate.parts.display import intel_igpu
from dra_simulate.parts.held import passed_through
from dra_simulate.parts.network import connectx6dx
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.network import Interface
from eventually import DEADLINE_S
from rare_parts import (
    aws_f2,
    coral,
    erdma,
    pvrdma,
    qat_of_vendor,
    tpu_v4,
    tpu_v5e,
    virtio_gpu,
    with_mediated_devices,
    without_driver,
    xdna,
)

_NAME = "unusual"
_PEX88096 = PciId(0x1000, 0xC010, 0x060400, 0x1000, 0xA096, 0xB0)
Make = Callable[..., Host]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(
        *bridges: HostBridge, iommu: bool = True, nvidia: bool = False, network: HostNetwork | None = None
    ) -> Host:
        machine = Machine(
            _NAME,
            "one host",
            nodes=(NumaNode("0-31", 256 << 30, (10,)),),
            bridges=bridges,
            iommu=iommu,
            network=network,
            nvidia=NvidiaDriver("570.124.06", 12080) if nvidia else None,
        )
        return build_machine(machine, tmp_path / "host")

    return made


def examine(host: Host, settings: InventorySettings | None = None) -> tuple[Topology, Inventory]:
    topology = scan(host, distances=True)
    inventory = collect(host, topology, settings or InventorySettings(nvml_timeout=DEADLINE_S))
    assert (topology.problems, inventory.problems) == ((), ())
    return topology, inventory


def mi50(address: str, card: int) -> Function:
    """An MI50 has one die and an older amdgpu no file of partitions."""
    function = mi210(address, card, 128 + card, machine=_NAME)
    return Function(
        address,
        PciId(0x1002, 0x66A1, 0x030000, 0x1002, 0x0834, 0x01),
        driver="amdgpu",
        link=LinkState(4, 16),
        bars=function.bars,
        roles=function.roles,
    )


def test_gpus_without_files_of_partitions_are_whole(make: Make, tmp_path: Path) -> None:
    ports = (port(f"0000:00:0{number}.0", mi50(f"0000:0{number}:00.0", number)) for number in (1, 2))
    host = make(HostBridge("pci0000:00", 0, tuple(ports)))
    assert list(host.sysfs.glob("bus/pci/devices/*/*compute_partition*")) == []
    for rules in ((), (PartitionRule(when="true", mode="amd"),)):
        settings = InventorySettings(partition=rules)
        inventory = collect(host, scan(host), settings)
        assert {device.name: device.health for device in inventory.devices} == {
            "gpu-0000-01-00-0": "healthy",
            "gpu-0000-02-00-0": "healthy",
        }
        assert {device.attributes["type"].value for device in inventory.devices} == {"gpu"}
        assert inventory.excluded == ()
    nodes = received(host, inventory, tmp_path)
    assert nodes["gpu-0000-01-00-0"] == {"/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"}


def test_domains_have_up_to_28_bits(make: Make, tmp_path: Path) -> None:
    """Linux numbers the domains of VMD and VMBus itself; an address has more than four digits then."""
    low, high = "10000:01:00.0", "fedcba9:01:00.0"
    host = make(
        HostBridge("pci10000:00", 0, (port("10000:00:01.0", mi50(low, 1)),)),
        HostBridge("pcifedcba9:00", 0, (port("fedcba9:00:01.0", mi50(high, 2)),)),
    )
    topology, inventory = examine(host)
    assert [device.pci_address for device in topology.relevant] == [low, high]
    assert [device.name for device in inventory.devices] == ["gpu-10000-01-00-0", "gpu-fedcba9-01-00-0"]
    assert [device.attributes["resource.kubernetes.io/pciBusID"].value for device in inventory.devices] == [low, high]
    assert topology.by_address[high].pcie_root == "pcifedcba9:00"
    assert all(received(host, inventory, tmp_path).values())


def test_two_levels_of_switches_have_the_top_one_in_common(make: Make) -> None:
    """A PEX88096 below a PEX88096, as in servers of eight GPUs with one link to the CPU."""
    first = switch(0x10, mi50("0000:12:00.0", 1), mi50("0000:13:00.0", 2), id=_PEX88096, link=LinkState(4, 16))
    second = switch(0x20, mi50("0000:22:00.0", 3), mi50("0000:23:00.0", 4), id=_PEX88096, link=LinkState(4, 16))
    inner = (
        port("0000:02:00.0", first, id=_PEX88096, link=LinkState(4, 16)),
        port("0000:02:01.0", second, id=_PEX88096, link=LinkState(4, 16)),
    )
    top = port("0000:01:00.0", *inner, id=_PEX88096, link=LinkState(4, 16))
    topology, inventory = examine(make(HostBridge("pci0000:00", 0, (port("0000:00:01.0", top),))))
    assert len(inventory.devices) == 4 and inventory.excluded == ()
    assert {device.pcie_switch for device in inventory.devices} == {"0000:01:00.0"}
    assert topology.distance("0000:12:00.0", "0000:13:00.0") is Distance.PIX
    assert topology.distance("0000:12:00.0", "0000:22:00.0") is Distance.PXB


def test_h100_of_a_virtual_machine_behind_switches_are_published(make: Make, tmp_path: Path) -> None:
    """The hypervisor emulates PLX switches, so that GPUs and NICs are near each other; there is no IOMMU."""
    gpus = [gpu(f"0000:{bus:02x}:00.0", H100_SXM, number, machine=_NAME) for number, bus in enumerate((0x03, 0x13))]
    switches = [switch(bus, one, id=PLX_SWITCH) for bus, one in zip((0x01, 0x11), gpus, strict=True)]
    ports = (port(f"0000:00:0{number + 1}.0", one) for number, one in enumerate(switches))
    host = make(HostBridge("pci0000:00", -1, tuple(ports)), iommu=False, nvidia=True)
    topology, inventory = examine(host)
    assert {device.name: device.pcie_switch for device in inventory.devices} == {
        "gpu-0000-03-00-0": "0000:01:00.0",
        "gpu-0000-13-00-0": "0000:11:00.0",
    }
    assert inventory.excluded == ()
    assert topology.distance("0000:03:00.0", "0000:13:00.0") is Distance.PHB
    assert "/dev/nvidia1" in received(host, inventory, tmp_path)["gpu-0000-13-00-0"]


def test_rdma_that_never_has_an_interface_of_its_own_is_published(make: Make) -> None:
    """RoCE whose interface is gone is not: a pod has the interface."""
    roce = connectx6dx("0000:04:00.0", 3, "enp4s0", 2, machine=_NAME)
    gone = replace(roce, roles=tuple(role for role in roce.roles if not isinstance(role, Interface)))
    adapters = (
        efa("0000:01:00.0", 0, machine=_NAME),
        erdma("0000:02:00.0", 1, machine=_NAME),
        pvrdma("0000:03:00.1", 2, machine=_NAME),
    )
    _, inventory = examine(make(HostBridge("pci0000:00", 0, (*adapters, gone))))
    assert [one.pci_address for one in inventory.devices] == [one.address for one in adapters]
    assert [(one.pci_address, one.code) for one in inventory.excluded] == [("0000:04:00.0", "no-interface")]


def test_a_virtual_function_below_the_hosts_uplink_is_excluded(make: Make) -> None:
    """Azure's accelerated networking: hv_netvsc's eth0 has the address and the route, and is the function's master."""
    uplink = VirtualInterface(name="eth0", index=9, ports=("enP1s1",))
    other = connectx6dx("0000:02:00.0", 1, "enP2s1", 3, machine=_NAME)
    below = connectx6dx("0000:01:00.0", 0, "enP1s1", 2, machine=_NAME)
    network = HostNetwork((uplink,), routes=(Route("0.0.0.0/0", "eth0", "10.0.0.1"),))
    _, inventory = examine(make(HostBridge("pci0000:00", 0, (below, other)), network=network))
    assert [device.name for device in inventory.devices] == ["nic-0000-02-00-0"]
    (excluded,) = inventory.excluded
    assert (excluded.name, excluded.code) == ("nic-0000-01-00-0", "host-interface")
    assert "eth0" in excluded.reason and "default route" in excluded.reason


def outcome(host: Host, inventory: Inventory, tmp_path: Path) -> dict[str, str]:
    """Return by device the nodes that a claim of it gets, or the code of its exclusion."""
    nodes = received(host, inventory, tmp_path)
    published = {one.name: " ".join(sorted(nodes[one.name] - {"/dev/vfio/vfio"})) for one in inventory.devices}
    return {one.name: one.code for one in inventory.excluded} | published


def test_tpus_have_the_nodes_of_their_generation(make: Make, tmp_path: Path) -> None:
    host = make(
        HostBridge(
            "pci0000:00",
            0,
            (
                tpu_v4("0000:00:04.0", 0),
                tpu_v4("0000:00:05.0", 1),
                without_driver(tpu_v4("0000:00:06.0", 2)),
                passed_through(tpu_v5e("0000:00:07.0"), 0),
                tpu_v5e("0000:00:08.0"),
            ),
        )
    )
    topology, inventory = examine(host)
    group = topology.by_address["0000:00:07.0"].iommu_group
    assert outcome(host, inventory, tmp_path) == {
        "accelerator-0000-00-04-0": "/dev/accel0",
        "accelerator-0000-00-05-0": "/dev/accel1",
        "accelerator-0000-00-06-0": "no-driver",
        "accelerator-0000-00-07-0": f"/dev/vfio/{group} /dev/vfio/devices/vfio0",
        "accelerator-0000-00-08-0": "no-driver",
    }
    names = {one.name: one.attributes["productName"].value for one in inventory.devices}
    assert set(names.values()) == {"TPU v4", "TPU v5e"}


def test_fpgas_of_aws_are_claimable_without_their_management(make: Make, tmp_path: Path) -> None:
    bound, management = aws_f2("0000:01:00")
    host = make(HostBridge("pci0000:00", 0, (passed_through(bound, 0), management, *aws_f2("0000:02:00"))))
    topology, inventory = examine(host)
    group = topology.by_address["0000:01:00.0"].iommu_group
    assert outcome(host, inventory, tmp_path) == {
        "fpga-0000-01-00-0": f"/dev/vfio/{group} /dev/vfio/devices/vfio0",
        "fpga-0000-01-00-1": "management",
        "fpga-0000-02-00-0": "no-driver",
        "fpga-0000-02-00-1": "management",
    }


def test_accelerators_without_a_driver_are_not_silently_absent(make: Make, tmp_path: Path) -> None:
    found = (without_driver(xdna("0000:01:00.1", 0)), without_driver(coral("0000:02:00.0", 0)))
    host = make(HostBridge("pci0000:00", 0, (*found, qat_of_vendor("0000:03:00.0", 0))))
    _, inventory = examine(host)
    assert outcome(host, inventory, tmp_path) == {
        "accelerator-0000-01-00-1": "no-driver",
        "accelerator-0000-02-00-0": "no-driver",
        "accelerator-0000-03-00-0": "user-space-driver",
    }


def test_a_gpu_in_parts_for_virtual_machines_is_not_published(make: Make, tmp_path: Path) -> None:
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    gpus = (gpu(f"0000:0{number}:00.0", A100_PCIE, number, machine=_NAME) for number in (1, 2, 3))
    plain, offered, divided = gpus
    host = make(
        HostBridge(
            "pci0000:00",
            0,
            (
                intel_igpu(8),
                plain,
                with_mediated_devices(offered),
                with_mediated_devices(divided, uuid),
                with_mediated_devices(intel_igpu(9, address="0000:04:00.0")),
                with_mediated_devices(intel_igpu(10, address="0000:05:00.0"), uuid.replace("fa", "fb")),
            ),
        ),
        nvidia=True,
    )
    _, inventory = examine(host)
    found = outcome(host, inventory, tmp_path)
    assert {name: code for name, code in found.items() if not code.startswith("/dev")} == {
        "gpu-0000-02-00-0": "virtualized",
        "gpu-0000-03-00-0": "virtualized",
        "gpu-0000-05-00-0": "virtualized",
    }
    assert found.keys() >= {"gpu-0000-00-02-0", "gpu-0000-01-00-0", "gpu-0000-04-00-0"}


@pytest.mark.parametrize("bus_device", [None, "virtio3"])
def test_the_display_of_a_virtual_machine_can_be_allowed(bus_device: str | None, make: Make, tmp_path: Path) -> None:
    host = make(HostBridge("pci0000:00", 0, (virtio_gpu("0000:00:01.0", 0, bus_device),)))
    _, inventory = examine(host)
    assert outcome(host, inventory, tmp_path) == {"gpu-0000-00-01-0": "console"}
    _, inventory = examine(host, InventorySettings(displays=("true",)))
    assert outcome(host, inventory, tmp_path) == {"gpu-0000-00-01-0": "/dev/dri/card0 /dev/dri/renderD128"}
