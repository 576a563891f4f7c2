"""The labels of a Node that follow from the attributes of its devices.

Topology-aware scheduling reads labels of Nodes only. A label exists if all devices that have the attribute have the
same value, so it is true for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dra_agent.inventory.model import Device, Inventory

_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_ATTRIBUTES = {"subnet": "ibSubnetPrefix", "rack": "rack", "leaf": "leaf", "spine": "spine", "core": "core"}
NAMES = ("domain", "clique", *_ATTRIBUTES)
"""Names of all labels, behind the prefix."""


def label_prefix(driver: str) -> str:
    """Return what the keys of all labels of a driver start with."""
    return f"fabric.{driver}/"


def fabric_labels(inventory: Inventory, driver: str, present: Mapping[str, str]) -> dict[str, str]:
    """Return the labels by key.

    A label that is `present` stays while devices that may have its value cannot be read: a library that starts again
    must not move a node out of its domain.
    """
    prefix = label_prefix(driver)
    found: dict[str, str] = {}
    cliques = {
        (str(domain.value), str(clique.value))
        for device in inventory.devices
        if (domain := device.attributes.get("fabricDomain")) is not None
        and (clique := device.attributes.get("fabricClique")) is not None
    }
    values = {
        "domain": {domain for domain, _ in cliques},
        # The number of a clique is unique in its domain only.
        "clique": {f"{domain}.{clique}" for domain, clique in cliques},
        **{name: _values(inventory.devices, attribute) for name, attribute in _ATTRIBUTES.items()},
    }
    is_complete = all(device.observed and device.health != "unmonitored" for device in inventory.devices)
    for name, different in values.items():
        key = f"{prefix}{name}"
        if len(different) == 1 and _VALUE.fullmatch(value := next(iter(different))):
            found[key] = value
        elif not different and not is_complete and key in present:
            found[key] = present[key]
    return found


def _values(devices: Iterable[Device], attribute: str) -> set[str]:
    return {
        str(value.value)
        for device in devices
        if (value := device.attributes.get(attribute)) is not None and not isinstance(value.value, bool)
    }
