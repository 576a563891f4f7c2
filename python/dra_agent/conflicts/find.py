"""Devices that another driver on the node advertises too, and the inventory without them.

Pure functions of an observation; `detector` observes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from dra_agent.claimable.codes import Code
from dra_agent.conflicts.device_plugins import DevicePluginResource, plugins_of
from dra_agent.conflicts.managers import KnownDriver, covers, known_driver
from dra_agent.conflicts.other_drivers import ForeignDevice, identities_of
from dra_agent.inventory.model import Device, Exclusion, Inventory

SETTING = "second_manager"


class Observation(msgspec.Struct, frozen=True):
    """State of other drivers on the node at one time."""

    foreign: tuple[ForeignDevice, ...] = ()
    """The devices that other drivers publish for the node."""
    plugins: tuple[DevicePluginResource, ...] = ()
    agents: dict[str, str] = {}
    """Driver → state directory, of agents of this product that run or ran on the host."""

    def manager(self, driver: str) -> str:
        """Return the text that names a driver."""
        agent = self.agents.get(driver)
        more = f" (dra-agent of this host, state directory {agent})" if agent is not None else ""
        return f"driver {driver}{more}"


class ConflictGroup(NamedTuple):
    """Devices with the same other manager."""

    manager: str
    names: list[str]
    unmatched: str
    """Why they cannot be compared with the manager's devices; "": it advertises these."""

    def __str__(self) -> str:
        count = f"{len(self.names)} device{'' if len(self.names) == 1 else 's'} of this node"
        if self.unmatched:
            return f"{self.manager} may advertise {count} too ({self.unmatched})"
        return f"{self.manager} advertises {count} too"


class DeviceConflicts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Devices of this agent that another driver advertises too, or may advertise."""

    managers: dict[str, str] = {}
    """Device name → manager: "device plugin nvidia.com/gpu", "driver gpu.nvidia.com".

    An agent of this host has its state directory added: "driver a.example.com (dra-agent of this host, ...)"."""
    unmatched: dict[str, str] = {}
    """Device name → why the manager's devices cannot be matched, for those that it only may advertise."""
    unjudged: tuple[str, ...] = ()
    """Managers whose devices are not known to be devices of this host."""

    def __bool__(self) -> bool:
        return bool(self.managers)

    def groups(self) -> list[ConflictGroup]:
        """Return the devices by manager, and by whether it advertises them or only may."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, manager in sorted(self.managers.items()):
            found.setdefault((manager, self.unmatched.get(name, "")), []).append(name)
        return [ConflictGroup(manager, names, unmatched) for (manager, unmatched), names in found.items()]

    def code(self, name: str) -> Code:
        """Return the code of the reason why a device is not published."""
        return "unmatched-manager" if name in self.unmatched else "other-manager"

    def reason(self, name: str) -> str:
        """Return the reason why a device is not published."""
        if unmatched := self.unmatched.get(name):
            return (
                f"{self.managers[name]} may advertise it on this node too ({unmatched}), so two pods could get it;"
                " label the node for one manager, add the device to inventory.exclude, or set"
                f' {SETTING} = "publish" if the other one does not have it'
            )
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
    return Observation(tuple(dict.fromkeys(foreign)), tuple(plugins_of(node)), dict(agents or {}))


def find_conflicts(
    devices: Iterable[Device], observation: Observation, host: Iterable[str] = frozenset()
) -> DeviceConflicts:
    """Return which of this agent's devices other drivers advertise too, or may advertise.

    `host` has the identities of all PCI functions of this host, also of those that are not devices of this agent.
    A driver that lists the very device is named before a driver that may have it, and that before a plugin that covers
    all of a kind.
    """
    devices = list(devices)
    identities = {device.name: identities_of(device) for device in devices}
    known = frozenset(host).union(*identities.values())
    listed = _listed(observation)
    unmatched = _unmatched(observation, known)
    managers, doubts = {}, {}
    for device in devices:
        driver = next((listed[identity] for identity in sorted(identities[device.name]) if identity in listed), "")
        if driver:
            managers[device.name] = observation.manager(driver)
        elif (row := next((row for row in unmatched if covers(row.covers, device)), None)) is not None:
            managers[device.name] = observation.manager(row.name)
            doubts[device.name] = unmatched[row]
        elif (plugin := next((plugin for plugin in observation.plugins if plugin.covers(device)), None)) is not None:
            managers[device.name] = f"device plugin {plugin.resource}"
    return DeviceConflicts(managers, doubts, _unjudged(observation, known))


def _listed(observation: Observation) -> dict[str, str]:
    """Return the driver that lists a device, by the identities of the device."""
    listed: dict[str, str] = {}
    for device in observation.foreign:
        for identity in device.identities:
            listed[identity] = min(device.driver, listed.get(identity, device.driver))
    return listed


def _unmatched(observation: Observation, known: frozenset[str]) -> dict[KnownDriver, str]:
    """Return the known drivers with a device that is none of the host's by its identities, and why."""
    found: dict[KnownDriver, str] = {}
    for device in sorted(observation.foreign, key=lambda device: (device.driver, sorted(device.identities))):
        row = known_driver(device.driver)
        if row is None or not row.covers or row in found or not device.identities.isdisjoint(known):
            continue
        if device.identities:
            found[row] = f"it lists {min(device.identities)}, which this host does not have"
        elif device.is_detached:
            found[row] = "it lists devices of a fabric, which are attached to this node for its claims"
        else:
            found[row] = "its slices do not identify the devices"
    return found


def _unjudged(observation: Observation, known: frozenset[str]) -> tuple[str, ...]:
    """Return the managers that are not in the table and list no device of this host."""
    drivers = {device.driver for device in observation.foreign if known_driver(device.driver) is None}
    judged = {device.driver for device in observation.foreign if not device.identities.isdisjoint(known)}
    return (
        *(observation.manager(driver) for driver in sorted(drivers - judged)),
        *(f"device plugin {plugin.resource}" for plugin in observation.plugins if not plugin.coverage),
    )


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
            *(Exclusion(one.name, conflicts.reason(one.name), conflicts.code(one.name)) for one in refused),
        ),
    )


def _counters(devices: Iterable[Device]) -> set[str]:
    return {consumed.counter_set for device in devices for consumed in device.consumes_counters}
