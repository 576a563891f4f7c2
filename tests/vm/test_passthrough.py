"""A NIC that a claim binds to vfio-pci, and back: the kernel's IOMMU groups and drivers."""

from __future__ import annotations

import pytest

from vm.machine import hardware
from vm.machine.agent import Agent, Commands, at_address
from vm.machine.guest import Guest

AGENT_CONFIG = """
[[inventory.passthrough]]
when = 'device.attributes["dra-agent.internal"].vendor == "intel"'
"""


def driver_of(guest: Guest, address: str) -> str:
    return guest.run(f"basename $(readlink /sys/bus/pci/devices/{address}/driver)").strip()


def interfaces(guest: Guest, address: str) -> list[str]:
    return guest.run(f"ls /sys/bus/pci/devices/{address}/net", check=False).split()


@pytest.fixture
def address(guest: Guest) -> str:
    """The PCI address of the NIC below the switch."""
    return guest.address_of(hardware.SWITCH_NIC)


def test_a_claim_binds_a_nic_to_vfio_and_its_release_gives_it_back(guest: Guest, agent: Agent, address: str) -> None:
    before = interfaces(guest, address)
    assert driver_of(guest, address) == "e1000e" and before
    agent.apply("guest", at_address(address))
    agent.wait_for_phase("guest", "Prepared")
    group = guest.run(f"basename $(readlink /sys/bus/pci/devices/{address}/iommu_group)").strip()
    assert driver_of(guest, address) == "vfio-pci"
    assert f"/dev/vfio/{group}" in guest.run("cat /run/cdi/*.json")
    guest.run(f"test -c /dev/vfio/{group}")
    agent.delete("guest")
    assert driver_of(guest, address) == "e1000e"
    assert interfaces(guest, address) == before


def test_groups_are_those_of_the_kernel(guest: Guest, commands: Commands) -> None:
    groups = guest.run("for path in /sys/kernel/iommu_groups/*/devices/*; do echo $path; done").split()
    expected = {path.rsplit("/", 1)[1]: int(path.split("/")[4]) for path in groups}
    assert expected, "the guest has no IOMMU"
    found = {address: one["iommu_group"] for address, one in commands.topology().items()}
    assert {address: group for address, group in found.items() if group is not None} == expected
