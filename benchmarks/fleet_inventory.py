"""Inventories of simulated nodes, and the comparison of published slices with them.

A profile is built and scanned once; the nodes of a fleet then differ in their names and in the UUIDs of their devices.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Taint
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import FAMILIES, Inventory, pool_name
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.reclaim.announcements import TAINT_NAME
from dra_agent.topology import LiveTopology
from dra_simulate import build

DRIVER = "dra-agent.internal"
FLAP_TAINT = f"{DRIVER}/gpu-lost"
"""Key of the taint of a GPU whose health changes."""
_NODES = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")


def scan(profile: str, folder: Path, *, mig: bool = False) -> tuple[Host, Inventory]:
    """Build the profile in `folder` and return the host and its devices with health; with `mig` in all partitions."""
    host = build(profile, folder)
    rules = (PartitionRule(f'device.attributes["{DRIVER}"].vendor == "nvidia"', "mig"),) if mig else ()
    collector = Collector(host, InventorySettings(partition=rules), driver=DRIVER)
    try:
        found = collector.collect(LiveTopology(host).snapshot())
    finally:
        collector.close()
    return host, Monitor(HealthSettings(), DRIVER).observe(found)


def of_node(inventory: Inventory, node: str) -> Inventory:
    """Return the inventory with UUIDs of that node."""

    def renamed(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
        old = attributes.get("uuid")
        if old is None or old.string is None:
            return attributes
        prefix = old.string[: -len(str(_NODES))]
        return {**attributes, "uuid": Attribute.of(f"{prefix}{uuid.uuid5(_NODES, node + old.string)}")}

    devices = (msgspec.structs.replace(device, attributes=renamed(device.attributes)) for device in inventory.devices)
    return msgspec.structs.replace(inventory, devices=tuple(devices))


def with_flap(inventory: Inventory) -> Inventory:
    """Return the inventory with the first GPU tainted, as if its health had changed."""
    first = next(device for device in inventory.devices if device.family == "gpu")
    taints = (*first.taints, Taint(FLAP_TAINT, "NoSchedule"))
    ill = msgspec.structs.replace(first, health="unhealthy", health_reason="the GPU does not respond", taints=taints)
    devices = tuple(ill if device is first else device for device in inventory.devices)
    return msgspec.structs.replace(inventory, devices=devices)


def with_notice(inventory: Inventory) -> Inventory:
    """Return the inventory with the taint of a reclaim notice on every device."""
    taint = Taint(f"{DRIVER}/{TAINT_NAME}", "NoExecute", "notice")
    devices = (msgspec.structs.replace(one, taints=(taint, *one.taints)) for one in inventory.devices)
    return msgspec.structs.replace(inventory, devices=tuple(devices))


def mismatch(slices: Iterable[dict[str, Any]], inventory: Inventory, node: str) -> str:
    """Return the first difference between a node's published slices and the inventory; empty if there is none.

    Only the slices of the highest generation of a pool count, and only if there are as many as they state: a scheduler
    uses no others. The times of taints are not compared, because the server sets them.
    """
    pools: dict[str, list[dict[str, Any]]] = {}
    for one in slices:
        if one["spec"].get("nodeName") == node:
            pools.setdefault(one["spec"]["pool"]["name"], []).append(one["spec"])
    for family in FAMILIES:
        pool = pool_name(node, family)
        specs = pools.pop(pool, [])
        generation = max((one["pool"]["generation"] for one in specs), default=0)
        current = [one for one in specs if one["pool"]["generation"] == generation]
        if any(one["pool"]["resourceSliceCount"] != len(current) for one in current):
            return f"{pool} is incomplete"
        if difference := _difference(current, inventory, family):
            return f"{pool}: {difference}"
    stray = next((name for name, specs in pools.items() if any(one.get("devices") for one in specs)), None)
    return f"{stray} should not exist" if stray else ""


def _difference(specs: list[dict[str, Any]], inventory: Inventory, family: Any) -> str:
    published = [_comparable(device) for one in specs for device in one.get("devices") or ()]
    by_name = {device["name"]: device for device in published}
    desired = {device.name: _comparable(device.to_api()) for device in inventory.family(family)}
    if len(published) != len(by_name):
        return "a device is published twice"
    if by_name.keys() != desired.keys():
        names = sorted(by_name.keys() ^ desired.keys())
        return f"{len(names)} devices are missing or should not exist, such as {names[0]}"
    for name, device in desired.items():
        if device != by_name[name]:
            return f"{name} differs"
    counters = {one["name"]: one for spec in specs for one in spec.get("sharedCounters") or ()}
    expected = {one.name: msgspec.to_builtins(one) for one in inventory.counter_sets.get(family, ())}
    return "" if counters == expected else "counter sets differ"


def _comparable(device: dict[str, Any]) -> dict[str, Any]:
    taints = [{key: value for key, value in one.items() if key != "timeAdded"} for one in device.get("taints") or ()]
    return {**device, "taints": taints}
