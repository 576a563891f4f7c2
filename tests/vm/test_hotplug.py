"""PCIe hot-plug and surprise removal of a NIC in a port of the switch: the agent follows the kernel's events, and a
claim its device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from eventually import eventually
from vm.machine import hardware
from vm.machine.agent import Agent, added, at_address, removed
from vm.machine.guest import Guest

FOLLOW_LIMIT_S = 2.0
"""From the event of the kernel to the changed devices, on a machine with an idle CPU for each of the guest's."""
SLOT_TIMEOUT_S = 60.0
"""The kernel waits 5 s after the button of a slot was pressed."""
NAME = "plugged"
SLOT_CONTROL = "CAP_EXP+18.w"
"""For setpci. Values are followed by the mask of the bits that change."""
OFF = "0700"
"""PCI_EXP_SLTCTL_PWR_OFF and PCI_EXP_SLTCTL_PWR_IND_OFF."""
OFF_WITHOUT_INTERRUPT = f"{OFF}:0720"
"""Without PCI_EXP_SLTCTL_HPIE."""
ON_WITH_INTERRUPT = "0120:0720"


def plug(guest: Guest) -> None:
    """Plug a NIC in, as a person does."""
    guest.monitor("device_add", driver="e1000e", bus=hardware.FREE_PORT, id=NAME)


def unplug(guest: Guest) -> None:
    """Press the button of the slot, and wait until the NIC has no power."""
    guest.monitor("device_del", id=NAME)
    wait_until_gone(guest)


def pull_out(guest: Guest) -> None:
    """Pull the NIC out without the button, and wait until the kernel's hot-plug driver has noticed.

    QEMU has no command for it. But it takes out what is in a slot whose power and power indicator are switched off, and
    the driver is not told of either: it gets no interrupt before the power is on again.
    """
    nic = f"/sys/bus/pci/devices/{guest.address_of(NAME)}"
    port = guest.run(f"basename $(dirname $(readlink -f {nic}))").strip()
    guest.run("dmesg --clear")
    guest.run(f"setpci -s {port} {SLOT_CONTROL}={OFF_WITHOUT_INTERRUPT} {SLOT_CONTROL}={ON_WITH_INTERRUPT}")
    wait_until_gone(guest)
    # The driver switches the slot off last. QEMU would also take out what is plugged in before.
    off = f"test $((0x$(setpci -s {port} {SLOT_CONTROL}) & 0x{OFF})) = $((0x{OFF}))"
    guest.run(f"until {off}; do sleep 0.1; done", within_s=SLOT_TIMEOUT_S)
    messages = guest.run("dmesg")
    assert re.search(rf"pcieport {port}: pciehp: .*Card not present", messages), messages
    assert "Attention button pressed" not in messages


def wait_until_gone(guest: Guest) -> None:
    """Wait until QEMU has taken the NIC out."""
    while guest.wait_for_event("DEVICE_DELETED", SLOT_TIMEOUT_S).get("device") != NAME:
        pass


def remove(guest: Guest) -> None:
    """Remove the function from the kernel, while it stays plugged in."""
    guest.run(f"echo 1 > /sys/bus/pci/devices/{guest.address_of(NAME)}/remove")


def find_again(guest: Guest) -> None:
    """Have the kernel find it again."""
    guest.run("echo 1 > /sys/bus/pci/rescan")


@pytest.fixture
def plugged(guest: Guest, agent: Agent) -> Iterator[str]:
    """A NIC that is plugged in and published; its PCI address."""
    seen = len(agent.log.entries())
    plug(guest)
    agent.log.wait_for(added, within_s=SLOT_TIMEOUT_S, after=seen)
    yield guest.address_of(NAME)
    unplug(guest)


def interface_events(guest: Guest, action: str) -> list[float]:
    """Return when the kernel announced that an interface of a PCI device was added or removed."""
    lines = (guest.shared / "events").read_text().splitlines()
    return [float(line.split()[0]) for line in lines if re.search(rf" {action}@/devices/pci\S+/net/[^/]+$", line)]


def follows(guest: Guest, action: str, earlier: int, entry: dict[str, Any]) -> bool:
    """Return whether an entry of the log follows the event after `earlier` ones in time."""
    limit_s = FOLLOW_LIMIT_S * guest.slowness
    (event,) = eventually(lambda: interface_events(guest, action)[earlier:], within=guest.patience_s(FOLLOW_LIMIT_S))
    # Two processes of the guest receive the event, in any order.
    return abs(datetime.fromisoformat(entry["time"]).timestamp() - event) < limit_s


@pytest.mark.parametrize("leave", [unplug, pull_out], ids=["slot", "surprise"])
def test_the_devices_follow_the_events_of_the_kernel(
    guest: Guest, agent: Agent, leave: Callable[[Guest], None]
) -> None:
    seen, events = len(agent.log.entries()), len(interface_events(guest, "add"))
    plug(guest)
    entry = agent.log.wait_for(added, within_s=SLOT_TIMEOUT_S, after=seen)
    (name,) = entry["added"]
    assert name == f"nic-{guest.address_of(NAME).replace(':', '-').replace('.', '-')}"
    assert follows(guest, "add", events, entry)

    seen, events = len(agent.log.entries()), len(interface_events(guest, "remove"))
    leave(guest)
    entry = agent.log.wait_for(removed, within_s=SLOT_TIMEOUT_S, after=seen)
    assert entry["removed"] == [name]
    assert follows(guest, "remove", events, entry)


@pytest.mark.parametrize(
    ("leave", "come_back"),
    [(unplug, plug), (pull_out, plug), (remove, find_again)],
    ids=["slot", "surprise", "kernel"],
)
def test_a_held_device_that_leaves_is_unhealthy_and_recovers(
    guest: Guest,
    agent: Agent,
    plugged: str,
    leave: Callable[[Guest], None],
    come_back: Callable[[Guest], None],
) -> None:
    agent.apply("holder", at_address(plugged))
    agent.wait_for_phase("holder", "Prepared")
    seen = len(agent.log.entries())
    try:
        leave(guest)
        agent.log.wait_for(removed, within_s=SLOT_TIMEOUT_S, after=seen)
        message = agent.wait_for_phase("holder", "Unhealthy")
        assert plugged.replace(":", "-").replace(".", "-") in message
        seen = len(agent.log.entries())
    finally:
        come_back(guest)
    agent.log.wait_for(added, within_s=SLOT_TIMEOUT_S, after=seen)
    try:
        agent.wait_for_phase("holder", "Prepared")
    finally:
        agent.delete("holder")
