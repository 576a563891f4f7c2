"""Devices that another driver on the node advertises too, and the inventory without them.

Pure functions of an observation; `detector` observes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dra_agent.conflicts.device_plugins import DevicePluginResource, plugins_of
from dra_agent.conflicts.other_drivers import ForeignDevice, identities_of
from dra_agent.inventory.model import Device, Exclusion, Inventory

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
            f"{self.managers[name]} also advertises it on this node, so two pods could get it; label the node for one"
            f' manager, add the device to inventory.exclude, or set {SETTING} = "publish"'
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


def exclude(inventory: Inventory, conflicts: DeviceConflicts) -> Inventory:
    """Return the inventory to publish: devices that other drivers advertise too are excluded, with the reason.

    Claims that hold such a device are not affected: they are prepared and released by the whole inventory.
    """
    refused = [device for device in inventory.devices if device.name in conflicts.managers]
    if not refused:
        return inventory
    kept = tuple(device for device in inventory.devices if device.name not in conflicts.managers)
    dropped = _counters(refused) - _counters(kept)
    return msgspec.structs.replace(
        inventory,
        devices=kept,
        # A counter set without consumers is not published.
        counter_sets={
            family: tuple(counters for counters in sets if counters.name not in dropped)
            for family, sets in inventory.counter_sets.items()
        },
        excluded=(
            *inventory.excluded,
            *(Exclusion(device.name, conflicts.reason(device.name), "other-manager") for device in refused),
        ),
    )


def _counters(devices: Iterable[Device]) -> set[str]:
    return {consumed.counter_set for device in devices for consumed in device.consumes_counters}
