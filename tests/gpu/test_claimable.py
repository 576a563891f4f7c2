"""The devices that may be claimed, compared with lspci, nvidia-smi and ip. Nothing is changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.topology import Topology, scan
from dra_simulate import build

from . import lspci
from .claimable import in_use, relevant_functions, unexplained, used_interfaces, withheld, without_nodes
from .conftest import REAL, Smi
from .journal import Journal
from .report import address

T4 = "0000:00:04.0"
LISTING = """0000:00:00.0 0600: 8086:1237 (rev 02)
0000:00:04.0 0302: 10de:1eb8 (rev a1)
0000:00:05.0 0200: 1af4:1041 (rev 01)
0001:2e:00.0 0b40: 1e60:2864 (rev 01)
"""
LINKS = json.dumps(
    [
        {"ifname": "lo"},
        {"ifname": "ens5"},
        {"ifname": "ens6", "master": "bond0"},
        {"ifname": "vlan7", "link": "ens7", "linkinfo": {"info_kind": "vlan"}},
        {"ifname": "veth1", "link": "ens8", "linkinfo": {"info_kind": "veth"}},
        {"ifname": "macvlan0", "link": "if9", "link_netnsid": 0, "linkinfo": {"info_kind": "macvlan"}},
    ]
)
ROUTES = json.dumps(
    [
        {"dst": "10.1.0.0/24", "dev": "ens8", "protocol": "kernel", "scope": "link"},
        {"type": "local", "dst": "10.1.0.2", "dev": "ens8", "table": "local"},
        {"type": "unreachable", "dst": "default", "dev": "lo"},
        {"dst": "10.2.0.0/16", "gateway": "10.1.0.1", "dev": "ens10", "table": "7"},
        {"dst": "10.3.0.0/16", "via": {"family": "inet6", "host": "fe80::1"}, "dev": "ens11"},
        {
            "dst": "default",
            "nexthops": [{"gateway": "10.1.0.1", "dev": "ens12"}, {"gateway": "10.1.0.3", "dev": "ens13"}],
        },
        {"dst": "default", "dev": "ens14", "scope": "link"},
    ]
)


def test_every_relevant_function_is_published_or_excluded(host: Host, inventory: Inventory, journal: Journal) -> None:
    tool = lspci.find_lspci()
    if tool is None:
        pytest.skip("lspci (pciutils) is not installed")
    listed = relevant_functions(lspci.listing(tool, host))
    journal.add("Published", [f"{one.name}: {one.pci_address}" for one in inventory.devices])
    journal.add("Excluded", [f"{one.name}: {one.code}: {one.reason}" for one in inventory.excluded])
    assert listed and unexplained(inventory, listed) == []


def test_gpus_of_nvidia_smi_are_published_with_nodes(inventory: Inventory, smi: Smi) -> None:
    assert withheld(inventory, [address(row["pci.bus_id"]) for row in smi.query("pci.bus_id")]) == []
    assert without_nodes(inventory) == []


def test_no_device_is_published_that_the_host_uses(inventory: Inventory, topology: Topology, journal: Journal) -> None:
    tool = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if not REAL or tool is None:
        pytest.skip("needs the network of a real host, and ip (iproute2)")
    links, *routes = (
        subprocess.run([tool, "-j", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout
        for arguments in (
            ("-d", "link", "show"),
            ("-4", "route", "show", "table", "all"),
            ("-6", "route", "show", "table", "all"),
        )
    )
    used = used_interfaces(links, routes)
    journal.add("Interfaces that the host needs", used)
    assert in_use(inventory, topology, used) == []


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Topology, Inventory]:
    """A T4 and an interface."""
    host = build("vm-1gpu", tmp_path_factory.mktemp("vm") / "host")
    topology = scan(host)
    return topology, collect(host, topology)


def test_functions_of_relevant_classes_are_those_that_lspci_lists(read: tuple[Topology, Inventory]) -> None:
    listed = relevant_functions(LISTING)
    assert listed == ["0000:00:04.0", "0000:00:05.0", "0001:2e:00.0"]
    assert unexplained(read[1], listed) == ["0001:2e:00.0"]
    assert withheld(read[1], ["0000:00:04.0"]) == []
    assert withheld(read[1], ["0001:2e:00.0"]) == ["0001:2e:00.0: not known"]


def test_an_excluded_gpu_of_nvidia_smi_is_shown_with_its_reason(tmp_path: Path) -> None:
    host = build("vm-1gpu", tmp_path / "host")
    topology = scan(host)
    reserved = msgspec.structs.replace(topology.by_address[T4], driver="pci-stub")
    inventory = collect(host, msgspec.structs.replace(topology, devices=(reserved,)))
    (line,) = withheld(inventory, [T4])
    assert line.startswith(f"{T4}: reserved: pci-stub ")
    assert unexplained(inventory, [T4]) == []


def test_uses_of_interfaces_are_those_that_ip_prints() -> None:
    assert used_interfaces(LINKS, [ROUTES, ""]) == {
        "ens6": "is a port of bond0",
        "ens7": "is below vlan7",
        "ens10": "carries a route to 10.2.0.0/16",
        "ens11": "carries a route to 10.3.0.0/16",
        "ens12": "carries a route to default",
        "ens13": "carries a route to default",
        "ens14": "carries a route to default",
    }


def test_a_published_interface_that_the_host_needs_is_found(read: tuple[Topology, Inventory]) -> None:
    topology, inventory = read
    (nic,) = inventory.family("nic")
    used = used_interfaces(LINKS, [json.dumps([{"dst": "default", "gateway": "10.0.0.1", "dev": "ens5"}])])
    assert in_use(inventory, topology, used) == [f"{nic.name}: ens5 carries a route to default"]
    allowed = msgspec.structs.replace(nic, identity={**nic.identity, "host_use": "a rule allows it"})
    assert in_use(_with(inventory, nic, allowed), topology, used) == []


def test_a_device_with_nothing_for_a_container_is_found(read: tuple[Topology, Inventory]) -> None:
    inventory = read[1]
    assert without_nodes(inventory) == []
    (gpu,) = inventory.family("gpu")
    for nodes in ((), tuple(msgspec.structs.replace(node, host_path="/dev/missing") for node in gpu.nodes)):
        assert without_nodes(_with(inventory, gpu, msgspec.structs.replace(gpu, nodes=nodes))) == [gpu.name]


def _with(inventory: Inventory, old: Device, new: Device) -> Inventory:
    return msgspec.structs.replace(inventory, devices=tuple(new if one is old else one for one in inventory.devices))
