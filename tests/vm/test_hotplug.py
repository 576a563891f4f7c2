"""PCIe hot-plug of a NIC in a port of the switch: the agent follows the kernel's events, and a claim its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from vm.machine import hardware
from vm.machine.agent import Agent, added, at_address, removed
from vm.machine.guest import Guest

FOLLOW_LIMIT_S = 2.0
"""From the event of the kernel to the changed devices, on a machine with an idle CPU for each of the guest's."""
SLOT_TIMEOUT_S = 60.0
"""The kernel waits 5 s after the button of a slot was pressed."""
NAME = "plugged"


def plug(guest: Guest) -> None:
    """Plug a NIC in, as a person does."""
    guest.monitor("device_add", driver="e1000e", bus=hardware.FREE_PORT, id=NAME)


def unplug(guest: Guest) -> None:
    """Press the button of the slot, and wait until the NIC has no power."""
    guest.monitor("device_del", id=NAME)
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


def seconds_after(event: str, entry: dict[str, Any], guest: Guest) -> float:
    """Return how long after the last event of the kernel with this action and part of a path an entry was logged."""
    lines = [line.split(" ", 1) for line in (guest.shared / "events").read_text().splitlines()]
    action, part = event.split("@")
    times = [float(time) for time, what in lines if what.startswith(f"{action}@") and part in what]
    return datetime.fromisoformat(entry["time"]).timestamp() - times[-1]


def test_the_devices_follow_the_events_of_the_kernel(guest: Guest, agent: Agent) -> None:
    seen = len(agent.log.entries())
    plug(guest)
    entry = agent.log.wait_for(added, within_s=SLOT_TIMEOUT_S, after=seen)
    address = guest.address_of(NAME)
    (name,) = entry["added"]
    assert name == f"nic-{address.replace(':', '-').replace('.', '-')}"
    # Without its interface, it cannot be claimed.
    late_s = seconds_after(f"add@/{address}/net/", entry, guest)
    assert late_s < FOLLOW_LIMIT_S * guest.slowness

    seen = len(agent.log.entries())
    unplug(guest)
    entry = agent.log.wait_for(removed, within_s=SLOT_TIMEOUT_S, after=seen)
    assert entry["removed"] == [name]
    late_s = seconds_after(f"remove@/{address}/net/", entry, guest)
    assert late_s < FOLLOW_LIMIT_S * guest.slowness


@pytest.mark.parametrize(("leave", "come_back"), [(unplug, plug), (remove, find_again)], ids=["slot", "kernel"])
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
