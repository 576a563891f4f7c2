"""An interface that the host uses is not published, and is again when the use ends: each use made with `ip`."""

from __future__ import annotations

import pytest

from vm.machine import hardware
from vm.machine.agent import Commands
from vm.machine.guest import Guest

USES = {
    "bond": (
        "ip link add bond7 type bond mode active-backup && ip link set NIC down && ip link set NIC master bond7",
        "ip link set NIC nomaster && ip link delete bond7",
        "host-interface",
        "is a port of bond7",
    ),
    "bridge": (
        "ip link add br7 type bridge && ip link set NIC master br7",
        "ip link delete br7",
        "host-interface",
        "is a port of br7",
    ),
    "vrf": (
        "ip link add vrf7 type vrf table 7 && ip link set NIC master vrf7",
        "ip link delete vrf7",
        "host-interface",
        "is a member of the VRF vrf7",
    ),
    "vlan": (
        "ip link add link NIC name vlan7 type vlan id 7",
        "ip link delete vlan7",
        "host-interface",
        "is the lower device of vlan vlan7",
    ),
    "macvlan": (
        "ip link add link NIC name mac7 type macvlan mode bridge",
        "ip link delete mac7",
        "host-interface",
        "is the lower device of macvlan mac7",
    ),
    "address": (
        "ip address add 192.0.2.7/24 dev NIC && ip link set NIC up",
        "ip address delete 192.0.2.7/24 dev NIC && ip link set NIC down",
        "host-address",
        "has the address 192.0.2.7/24",
    ),
    "default route": (
        "ip address add 192.0.2.7/24 dev NIC && ip link set NIC up && ip route add default via 192.0.2.1 dev NIC",
        "ip address flush dev NIC && ip link set NIC down",
        "host-interface",
        "carries the default route via 192.0.2.1",
    ),
}
"""By name: what makes the use, what ends it, the code of the exclusion, and the last words of its reason."""


@pytest.fixture(scope="module")
def interface(guest: Guest) -> str:
    """The interface of the NIC below the switch."""
    return guest.run(f"ls /sys/bus/pci/devices/{guest.address_of(hardware.SWITCH_NIC)}/net").strip()


@pytest.mark.parametrize("use", USES)
def test_a_used_interface_is_excluded_until_the_use_ends(
    commands: Commands, guest: Guest, interface: str, use: str
) -> None:
    address = guest.address_of(hardware.SWITCH_NIC)
    make, end, code, words = (text.replace("NIC", interface) for text in USES[use])
    guest.run(make)
    try:
        listed = commands.read("devices")
    finally:
        guest.run(end)
    (exclusion,) = [one for one in listed["excluded"] if one["pci_address"] == address]
    assert (exclusion["code"], exclusion["reason"]) == (code, f"the host uses it: {interface} {words}")
    assert address in [device["pci_address"] for device in commands.read("devices")["devices"]]
