"""What the agent reports of PCI and NUMA is what QEMU was given, and what lspci reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from vm.machine import hardware
from vm.machine.agent import Commands
from vm.machine.guest import Guest


@pytest.fixture(scope="module")
def functions(commands: Commands) -> dict[str, dict[str, Any]]:
    """The functions that the agent finds, by PCI address."""
    return commands.topology()


def test_all_functions_are_found_with_the_ids_and_drivers_that_lspci_shows(
    guest: Guest, functions: dict[str, dict[str, Any]]
) -> None:
    shown = {}
    for block in guest.run("lspci -Dnvmmk 2> /dev/null").split("\n\n"):
        fields = dict(line.split(":\t", 1) for line in block.splitlines())
        if fields:
            ids = [f"0x{fields[name]}" for name in ("Class", "Vendor", "Device")]
            shown[fields["Slot"]] = [*ids, fields.get("Driver")]
    found = {
        address: [function["class"][:6], function["vendor_id"], function["device_id"], function["driver"]]
        for address, function in functions.items()
    }
    assert found == shown


def test_devices_below_the_switch_have_it_and_its_numa_node(guest: Guest, functions: dict[str, dict[str, Any]]) -> None:
    switch = guest.address_of("switch")
    for name, expected_switch, expected_node in (
        (hardware.SWITCH_NIC, switch, hardware.SWITCH_NODE),
        (hardware.GPU, switch, hardware.SWITCH_NODE),
        (hardware.PARAVIRTUAL_NIC, None, None),
        (hardware.DRIVE, None, None),
    ):
        function = functions[guest.address_of(name)]
        assert (function["pcie_switch"], function["numa_node"]) == (expected_switch, expected_node), name


def test_parents_are_the_ports_between_a_function_and_its_root(
    guest: Guest, functions: dict[str, dict[str, Any]]
) -> None:
    """As `lspci -tv` draws it: /sys has the path from the root to each function."""
    paths = guest.run("readlink -f /sys/bus/pci/devices/*").split()
    expected = {path.rsplit("/", 1)[1]: path.removeprefix("/sys/devices/").split("/") for path in paths}
    assert {
        address: [function["pcie_root"], *function["parents"], address] for address, function in functions.items()
    } == expected


def test_numa_nodes_are_those_of_the_machine(commands: Commands) -> None:
    nodes = commands.read("topology")["numa_nodes"]
    assert [(node["id"], node["cpus"]) for node in nodes] == [(node, str(node)) for node in range(hardware.NODES)]
    for node in nodes:
        # The kernel itself keeps some of it.
        assert 0.7 <= node["memory_bytes"] / (hardware.MEMORY_MIB // hardware.NODES << 20) <= 1, node


@pytest.fixture
def virtual_functions(guest: Guest) -> Iterator[list[str]]:
    """Two virtual functions of the drive."""
    number = f"/sys/bus/pci/devices/{guest.address_of(hardware.DRIVE)}/sriov_numvfs"
    guest.run(f"echo 2 > {number}")
    yield guest.run(f"basename -a $(readlink -f {number.removesuffix('sriov_numvfs')}virtfn*)").split()
    guest.run(f"echo 0 > {number}")


def test_virtual_functions_of_a_drive_are_related_to_it(
    guest: Guest, virtual_functions: list[str], commands: Commands
) -> None:
    functions, drive = commands.topology(), guest.address_of(hardware.DRIVE)
    assert functions[drive]["virtfns"] == virtual_functions and len(virtual_functions) == 2
    assert functions[drive]["sriov"] == {"total_vfs": hardware.VIRTUAL_FUNCTIONS, "num_vfs": 2}
    for function in virtual_functions:
        assert functions[function]["physfn"] == drive
    listed = commands.read("devices")
    assert drive not in json.dumps(listed), "a drive is neither published nor excluded"


def test_a_display_is_excluded_without_a_rule(guest: Guest, commands: Commands) -> None:
    (exclusion,) = commands.read("devices")["excluded"]
    assert (exclusion["pci_address"], exclusion["code"]) == (guest.address_of(hardware.GPU), "console")
