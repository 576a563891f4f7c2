"""AWS Neuron devices, Gaudi 3 and Alveo V80: what their drivers show, and the nodes that containers need."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.neuron import NEURON_IOCTL_DEVICE_BDF_EXT, query_address
from dra_agent.topology import DeviceKind, PciFunction, Topology, scan
from dra_simulate import build

Write = Callable[[str, object], None]
Make = Callable[..., PciFunction]
TopologyOf = Callable[..., Topology]
CLASS = "sys/class/neuron_device"

# `neuron-ls` of a trn2n.48xlarge in the guide of AWS: number, bus.
TRN2_BUSES = ["cc", "b5", "b6", "cb", "6f", "58", "59", "6e", "9b", "84", "85", "9a", "f8", "e1", "e2", "f7"]


def node_paths(device: Device) -> list[str]:
    return [node.path for node in device.nodes]


def only(inventory: Inventory) -> Device:
    (device,) = inventory.devices
    return device


@pytest.fixture(scope="module")
def trn2(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return build("trn2", tmp_path_factory.mktemp("trn2") / "host")


def test_neuron_devices_have_the_node_of_their_address_and_not_of_their_order(trn2: Host) -> None:
    inventory = collect(trn2, scan(trn2))
    assert inventory.problems == ()
    devices = inventory.family("accelerator")
    assert {device.pci_address: node_paths(device) for device in devices} == {
        f"0000:{bus}:00.0": [f"/dev/neuron{number}"] for number, bus in enumerate(TRN2_BUSES)
    }
    for device in devices:
        values = {name: attribute.value for name, attribute in device.attributes.items()}
        assert (values["type"], values["vendor"], values["productName"]) == ("accelerator", "amazon", "AWS Trainium2")
        assert (device.capacity["memory"].value, device.capacity["neuronCores"].value) == ("96Gi", "8")
    assert [device.numa_node for device in devices] == [0] * 8 + [1] * 8


def test_a_neuron_device_without_a_known_node_is_not_published(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    neuron = function("0000:00:1f.0", DeviceKind.ACCELERATOR, "0x1d0f", "0x7264", driver="neuron-driver")
    # No driver answers here: the node is an ordinary file.
    write(f"{CLASS}/neuron0/dev", "243:0")
    write("dev/neuron0", "")
    inventory = collect(host, topology_of(neuron))
    assert inventory.devices == ()
    (problem,) = inventory.problems
    assert problem.where == "0000:00:1f.0"
    assert "which /dev/neuron" in problem.message
    assert problem.hint is not None
    (excluded,) = inventory.excluded
    assert (excluded.name, excluded.code) == ("accelerator-0000-00-1f-0", "node-unknown")
    assert inventory.excluded_by_reason() == [], "the problem already says it"


def test_one_unknown_node_costs_one_device(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    two = [
        function(f"0000:00:{slot}.0", DeviceKind.ACCELERATOR, "0x1d0f", "0x7264", driver="neuron-driver")
        for slot in ("1e", "1f")
    ]
    write(f"{CLASS}/neuron0/dev", "243:0")
    write(f"{CLASS}/neuron1/dev", "243:1")
    (host.sysfs / "class/neuron_device/neuron1/device").symlink_to(host.sysfs / "bus/pci/devices/0000:00:1e.0")
    inventory = collect(host, topology_of(*two))
    device = only(inventory)
    assert [one.pci_address for one in inventory.excluded] == ["0000:00:1f.0"]
    assert (device.pci_address, node_paths(device)) == ("0000:00:1e.0", ["/dev/neuron1"])
    assert device.capacity["memory"].value == "32Gi"
    assert "neuronCores" not in device.capacity


def test_the_driver_is_queried_without_occupying_the_device(tmp_path: Path) -> None:
    node = tmp_path / "neuron3"
    node.touch()
    flags: list[int] = []

    def driver(descriptor: int, command: int, argument: bytearray) -> int:
        # _IOR('N', 106, pointer): neuron_ioctl.h; the driver counts no user of a descriptor that is opened for writing.
        assert command == NEURON_IOCTL_DEVICE_BDF_EXT == 0x80084E6A
        flags.append(int(Path(f"/proc/self/fdinfo/{descriptor}").read_text().split("flags:")[1].split()[0], 8))
        assert struct.unpack_from("<I", argument) == (0,)
        struct.pack_into("<IIIBB", argument, 0, 0, 1, 0xCC, 0x1E, 0)
        return 0

    assert query_address(node, ioctl=driver) == "0001:cc:1e.0"
    assert flags[0] & os.O_ACCMODE == os.O_WRONLY


def test_a_gaudi_3_has_its_ports_and_names(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    facts = {"driver": "habanalabs", "accel": ("accel/accel0",), "infiniband": ("hbl_0",), "uverbs": ("uverbs4",)}
    gaudis = [
        function("0000:19:00.0", DeviceKind.ACCELERATOR, "0x1da3", "0x1060", **facts),
        function(
            "0000:1a:00.0", DeviceKind.ACCELERATOR, "0x1da3", "0x1063", driver="habanalabs", accel=("accel/accel1",)
        ),
    ]
    module, card = collect(host, topology_of(*gaudis)).devices
    # Intel's driver for claims gives the RDMA node of the scale-out ports too.
    assert node_paths(module) == ["/dev/accel/accel0", "/dev/infiniband/uverbs4"]
    assert node_paths(card) == ["/dev/accel/accel1"]
    assert [one.attributes["productName"].value for one in (module, card)] == ["Gaudi3", "Gaudi3 PCIe"]


def test_a_v80_is_one_device_with_the_nodes_of_both_its_functions(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    names = (("0x50b4", "ami"), ("0x50b5", "slash_qdma"), ("0x50b6", "slash_ctl"))
    card = [
        function(f"0000:81:00.{number}", DeviceKind.FPGA, "0x10ee", device, driver=driver)
        for number, (device, driver) in enumerate(names)
    ]
    other = function("0000:82:00.2", DeviceKind.FPGA, "0x10ee", "0x50b6", driver="slash_ctl")
    for address, name in (("81:00.1", "slash_qdma_ctl"), ("81:00.2", "slash_ctl"), ("82:00.2", "slash_ctl")):
        minor = int(address == "82:00.2")
        folder = f"sys/bus/pci/devices/0000:{address}/misc/{name}_0000:{address}"
        write(f"{folder}/dev", f"10:{minor}")
        write(f"{folder}/uevent", f"MAJOR=10\nMINOR={minor}\nDEVNAME={name}{minor}")
    inventory = collect(host, topology_of(*card, other))
    device = only(inventory)
    assert device.name == "fpga-0000-81-00-1"
    assert {one.pci_address: one.code for one in inventory.excluded} == {
        "0000:81:00.0": "management",
        "0000:81:00.2": "part-of-device",
        "0000:82:00.2": "part-of-device",
    }
    assert device.attributes["productName"].value == "Alveo V80"
    assert node_paths(device) == ["/dev/slash_qdma_ctl0", "/dev/slash_ctl0"]


def test_the_link_type_of_an_elastic_fabric_adapter_is_left_out(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    efa = function("0000:10:19.0", DeviceKind.NIC, "0x1d0f", "0xefa1", driver="efa", infiniband=("rdmap16s25",))
    port = "sys/bus/pci/devices/0000:10:19.0/infiniband/rdmap16s25/ports/1"
    # The kernel prints "Unknown" for a link that is neither InfiniBand nor Ethernet (link_layer_show).
    for name, value in {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "Unknown"}.items():
        write(f"{port}/{name}", value)
    attributes = only(collect(host, topology_of(efa))).attributes
    assert "linkType" not in attributes
    assert attributes["rdmaDevice"].value == "rdmap16s25"
