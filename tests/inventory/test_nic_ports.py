"""Adapters with several ports on one PCI function: which is described, and when the adapter fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device
from dra_agent.topology import DeviceKind, PciFunction, Topology, scan

Write = Callable[[str, object], None]
ADDRESS = "0000:01:00.0"
FILES = f"sys/bus/pci/devices/{ADDRESS}"
UP, DOWN, OFF = ("0x1003", 1), ("0x1003", 0), ("0x1002", None)


class Adapter:
    """A ConnectX-3 of a test."""

    def __init__(
        self, host: Host, write: Write, function: Callable[..., PciFunction], topology_of: Callable[..., Topology]
    ) -> None:
        self._host = host
        self._write = write
        self._function = function
        self._topology_of = topology_of
        self._net: list[str] = []
        self._rdma: list[str] = []

    def interface(
        self, name: str, link: tuple[str, int | None], port: int = 0, *, ib: bool = False, **more: object
    ) -> None:
        """Add an interface, or change its link."""
        flags, carrier = link
        files = {"flags": flags, "dev_port": port, "type": 32 if ib else 1, **more}
        files["operstate"] = "up" if carrier else "down"
        files["speed"] = 40000 if carrier else -1
        if carrier is not None:
            files["carrier"] = carrier
        for file, value in files.items():
            self._write(f"{FILES}/net/{name}/{file}", value)
        self._net = sorted({*self._net, name})

    def rdma(self, device: str, *states: str, layer: str = "Ethernet", ndevs: tuple[str, ...] = ()) -> None:
        """Add an RDMA device with a port for each state."""
        words = {"up": ("4: ACTIVE", "5: LinkUp"), "down": ("1: DOWN", "2: Polling"), "off": ("1: DOWN", "3: Disabled")}
        for number, state in enumerate(states, start=1):
            port = f"{FILES}/infiniband/{device}/ports/{number}"
            logical, physical = words[state]
            self._write(f"{port}/state", logical)
            self._write(f"{port}/phys_state", physical)
            self._write(f"{port}/link_layer", layer)
            self._write(f"{port}/rate", "56 Gb/sec (4X FDR)")
            self._write(f"{port}/gids/0", f"fe80:0000:0000:0000:0002:c903:0000:000{number}")
        for number, name in enumerate(ndevs, start=1):
            self._write(f"{FILES}/infiniband/{device}/ports/{number}/gid_attrs/ndevs/0", name)
        self._rdma = sorted({*self._rdma, device})

    def device(self) -> Device:
        """Return the only device."""
        nic = self._function(
            ADDRESS,
            DeviceKind.NIC,
            "0x15b3",
            "0x1007",
            driver="mlx4_core",
            net=tuple(self._net),
            infiniband=tuple(self._rdma),
        )
        (device,) = collect(self._host, self._topology_of(nic)).devices
        return device


@pytest.fixture
def adapter(
    host: Host, write: Write, function: Callable[..., PciFunction], topology_of: Callable[..., Topology]
) -> Adapter:
    return Adapter(host, write, function, topology_of)


def value(device: Device, name: str) -> bool | int | str | None:
    return device.attributes[name].value if name in device.attributes else None


def causes(device: Device) -> list[str]:
    return [issue.cause for issue in device.issues]


def test_an_ethernet_adapter_works_by_its_second_port(adapter: Adapter) -> None:
    adapter.interface("ens1", DOWN)
    adapter.interface("ens1d1", UP, port=1)
    adapter.rdma("mlx4_0", "down", "up")
    device = adapter.device()
    assert (device.health, causes(device)) == ("healthy", [])
    found = {
        name: value(device, name) for name in ("ifName", "state", "linkSpeed", "linkType", "rdmaDevice", "portCount")
    }
    assert found == {
        "ifName": "ens1d1",
        "state": "up",
        "linkSpeed": 40000,
        "linkType": "ethernet",
        "rdmaDevice": "mlx4_0",
        "portCount": 2,
    }
    assert device.identity["ifname"] == "ens1d1"


def test_all_ports_that_are_switched_on_are_down(adapter: Adapter) -> None:
    adapter.interface("ens1", DOWN)
    adapter.interface("ens1d1", DOWN, port=1)
    device = adapter.device()
    assert device.health == "unhealthy" and set(causes(device)) == {"link-down"}
    assert [issue.message for issue in device.issues] == [
        "ens1 is switched on and has no link",
        "ens1d1 is switched on and has no link",
    ]
    assert value(device, "ifName") == "ens1", "in the order of the ports"
    adapter.interface("ens1d1", OFF, port=1)
    device = adapter.device()
    assert [issue.message for issue in device.issues] == ["ens1 is switched on and has no link"]


def test_ports_that_are_switched_off_are_no_failure(adapter: Adapter) -> None:
    adapter.interface("ens1", OFF)
    adapter.interface("ens1d1", OFF, port=1)
    adapter.rdma("mlx4_0", "off", "off")
    device = adapter.device()
    assert device.health == "healthy" and value(device, "ifName") == "ens1"


def test_the_first_of_two_ports_with_a_link_is_described(adapter: Adapter) -> None:
    adapter.interface("a1", UP, port=1)
    adapter.interface("b0", UP)
    adapter.rdma("mlx4_0", "up", "up", layer="InfiniBand")
    device = adapter.device()
    assert value(device, "ifName") == "b0"
    assert value(device, "ibPortGUID") == "0x0002c90300000001"


def test_interface_and_rdma_port_are_of_the_same_port(adapter: Adapter) -> None:
    # Without an address on IPoIB, neither interface is up: the RDMA ports have the link.
    adapter.interface("ib0", OFF, ib=True)
    adapter.interface("ib1", OFF, port=1, ib=True)
    adapter.rdma("mlx4_1", "down", "up", layer="InfiniBand")
    device = adapter.device()
    assert device.health == "healthy"
    assert (value(device, "ifName"), value(device, "ibPortGUID")) == ("ib1", "0x0002c90300000002")
    adapter.rdma("mlx4_1", "down", "down", layer="InfiniBand")
    device = adapter.device()
    assert set(causes(device)) == {"link-down"} and value(device, "ifName") == "ib0"
    assert "port 2 of mlx4_1 has no link (2: Polling)" in [issue.message for issue in device.issues]


def test_an_rdma_device_without_interfaces_works_by_its_second_port(adapter: Adapter) -> None:
    adapter.rdma("mlx4_1", "down", "up", layer="InfiniBand")
    device = adapter.device()
    found = [value(device, name) for name in ("state", "linkType", "linkSpeed", "ibPortGUID", "portCount")]
    assert found == ["up", "infiniband", 56000, "0x0002c90300000002", 2]
    assert device.health == "healthy" and value(device, "ifName") is None


def test_an_rdma_device_for_each_port(adapter: Adapter) -> None:
    # Neither driver numbers: the second device belongs to the second interface.
    adapter.interface("eth0", DOWN)
    adapter.interface("eth1", UP)
    adapter.rdma("rdma0", "down")
    adapter.rdma("rdma1", "up")
    device = adapter.device()
    assert device.health == "healthy"
    assert [value(device, name) for name in ("ifName", "rdmaDevice", "portCount")] == ["eth1", "rdma1", 2]


def test_the_gid_table_names_the_interface_of_an_rdma_port(adapter: Adapter) -> None:
    adapter.interface("eth0", UP)
    adapter.interface("eth1", DOWN)
    adapter.rdma("mana_0", "down", "up", ndevs=("eth1", "eth0"))
    device = adapter.device()
    assert (device.health, value(device, "ifName"), value(device, "portCount")) == ("healthy", "eth0", 2)


@pytest.mark.parametrize("ndevs", [("p0", "rep0", "rep1"), ()])
def test_representors_are_no_ports(adapter: Adapter, ndevs: tuple[str, ...]) -> None:
    adapter.interface("p0", DOWN, phys_port_name="p0")
    adapter.interface("rep0", UP, phys_port_name="pf0vf0")
    adapter.interface("rep1", UP, phys_port_name="c1pf0vf1")
    adapter.rdma("mlx5_0", "down", "up", "up", ndevs=ndevs)
    device = adapter.device()
    assert set(causes(device)) == {"link-down"}
    assert (value(device, "ifName"), value(device, "portCount")) == ("p0", None)


def test_a_representor_does_not_replace_an_interface_that_was_moved(adapter: Adapter) -> None:
    adapter.interface("rep0", UP, phys_port_name="pf0vf0")
    adapter.rdma("mlx5_0", "up", "up", ndevs=("gone", "rep0"))
    device = adapter.device()
    assert (value(device, "ifName"), value(device, "portCount")) == (None, None)
    assert "ifname" not in device.identity


def test_one_port_has_no_number_of_ports(adapter: Adapter) -> None:
    adapter.interface("ens1", UP)
    adapter.rdma("mlx5_0", "up")
    assert value(adapter.device(), "portCount") is None


def test_a_host_with_two_port_adapters(tmp_path: Path) -> None:
    host = dra_simulate.build("connectx-3", tmp_path / "two-ports")
    devices = {device.pci_address: device for device in collect(host, scan(host)).family("nic")}
    ethernet, infiniband, single = (devices[f"0000:{bus}:00.0"] for bus in ("01", "02", "04"))
    assert {device.health for device in devices.values()} == {"healthy"}
    assert [value(device, "ifName") for device in devices.values()] == ["ens1d1", "ib1", "eno1np0"]
    assert [value(device, "portCount") for device in (ethernet, infiniband, single)] == [2, 2, None]
    assert [value(device, "state") for device in (ethernet, infiniband)] == ["up", "up"]
    assert value(infiniband, "linkSpeed") == 56000


@pytest.mark.parametrize("recorded_host", ["connectx3-two-ports"], indirect=True)
def test_a_recorded_host_with_a_cable_in_the_second_port(recorded_host: Host) -> None:
    ethernet, infiniband = collect(recorded_host, scan(recorded_host)).family("nic")
    assert [(device.health, value(device, "ifName")) for device in (ethernet, infiniband)] == [
        ("healthy", "ens1d1"),
        ("healthy", "ib1"),
    ]
    assert [value(device, "portCount") for device in (ethernet, infiniband)] == [2, 2]
