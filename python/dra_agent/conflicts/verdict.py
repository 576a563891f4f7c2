"""Devices that another driver on the node advertises too, and the inventory without them.

A pure function of an observation; `detector` observes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import atomic_file
from dra_agent.conflicts.device_plugins import DevicePluginResource, plugins_of
from dra_agent.conflicts.other_drivers import ForeignDevice, identities_of
from dra_agent.inventory.model import Device, Exclusion, Inventory
from dra_agent.json_decode import decode_json

SETTING = "second_manager"


class Observation(msgspec.Struct, frozen=True):
    """State of other drivers on the node at one time."""

    listed: dict[str, str] = {}
    """PCI address or UUID, in lower case → the driver that lists such a device."""
    plugins: tuple[DevicePluginResource, ...] = ()
    agents: dict[str, str] = {}
    """Driver → state directory, of agents of this product that run or ran on the host."""


class DeviceConflicts(msgspec.Struct, frozen=True):
    """Devices of this agent that another driver advertises too."""

    managers: dict[str, str] = {}
    """Device name → manager: "device plugin nvidia.com/gpu", "driver gpu.nvidia.com".

    An agent of this host has its state directory added: "driver a.example.com (dra-agent of this host, ...)"."""

    def __bool__(self) -> bool:
        return bool(self.managers)

    def by_manager(self) -> dict[str, list[str]]:
        """Manager → names of the devices."""
        found: dict[str, list[str]] = {}
        for name, manager in sorted(self.managers.items()):
            found.setdefault(manager, []).append(name)
        return found

    def reason(self, name: str) -> str:
        """Return the reason why a device is not published."""
        return (
            f"{self.managers[name]} gives it out on this node too, and each could give it to another pod ({SETTING});"
            " keep the two apart by node labels, or exclude the device there or here"
        )


def observe(
    *, node: Mapping[str, Any], foreign: Iterable[ForeignDevice], agents: Mapping[str, str] | None = None
) -> Observation:
    """Return the state of other drivers: the Node as JSON values, and devices of slices of other drivers on it.

    `agents` is as in Observation.
    """
    listed: dict[str, str] = {}
    for device in foreign:
        for identity in device.identities:
            listed[identity] = min(device.driver, listed.get(identity, device.driver))
    return Observation(listed, tuple(plugins_of(node)), dict(agents or {}))


def find_conflicts(devices: Iterable[Device], observation: Observation) -> DeviceConflicts:
    """Return which of this agent's devices other drivers advertise too.

    A driver that lists the very device is named before a plugin that covers all of a kind.
    """
    managers = {}
    for device in devices:
        listed = observation.listed
        driver = next(
            (listed[identity] for identity in sorted(identities_of(device)) if identity in listed),
            "",
        )
        if driver:
            agent = observation.agents.get(driver)
            more = f" (dra-agent of this host, state directory {agent})" if agent is not None else ""
            managers[device.name] = f"driver {driver}{more}"
        elif (plugin := next((plugin for plugin in observation.plugins if plugin.covers(device)), None)) is not None:
            managers[device.name] = f"device plugin {plugin.resource}"
    return DeviceConflicts(managers)


def exclude(inventory: Inventory, verdict: DeviceConflicts) -> Inventory:
    """Return the inventory to publish: devices that other drivers advertise too are excluded, with the reason.

    Claims that hold such a device are not affected: they are prepared and released by the whole inventory.
    """
    refused = [device for device in inventory.devices if device.name in verdict.managers]
    if not refused:
        return inventory
    kept = tuple(device for device in inventory.devices if device.name not in verdict.managers)
    dropped = _counters(refused) - _counters(kept)
    return msgspec.structs.replace(
        inventory,
        devices=kept,
        # A counter set without consumers is not published.
        counter_sets={
            family: tuple(counters for counters in sets if counters.name not in dropped)
            for family, sets in inventory.counter_sets.items()
        },
        excluded=(*inventory.excluded, *(Exclusion(device.name, verdict.reason(device.name)) for device in refused)),
    )


def _counters(devices: Iterable[Device]) -> set[str]:
    return {consumed.counter_set for device in devices for consumed in device.consumes_counters}


NAME = "neighbours.json"
_MAX_BYTES = 16 << 20


class SavedConflicts(msgspec.Struct, frozen=True):
    """Devices that other drivers advertise too, and whether the agent still publishes them."""

    verdict: DeviceConflicts = DeviceConflicts()
    published: bool = False


def save_conflicts(state_dir: Path, found: SavedConflicts) -> None:
    """Write it where it differs, whole or not at all; one that is lost is found again."""
    path = state_dir / NAME
    if load_conflicts(state_dir) == found:
        return
    with suppress(OSError):
        atomic_file.write(path, msgspec.json.encode(found))


def delete(state_dir: Path) -> None:
    """Remove it: without an API server there are no other drivers."""
    with suppress(OSError):
        (state_dir / NAME).unlink()


def load_conflicts(state_dir: Path) -> SavedConflicts:
    """Read it."""
    try:
        return decode_json(atomic_file.read(state_dir / NAME, _MAX_BYTES), type=SavedConflicts)
    except (OSError, msgspec.DecodeError):
        return SavedConflicts()
