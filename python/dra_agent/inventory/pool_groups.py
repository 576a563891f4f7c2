"""Separate pools for the products of one family.

Cluster Autoscaler expects the devices of a pool to be identical, and of a pool with counters the counter sets
(kubernetes/autoscaler, cluster-autoscaler/docs/dra_support.md, Limitations, at 55c37cd5eb55).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dra_agent.inventory.model import Device
from dra_agent.topology.model import Topology

MAX_CHARS = 63
"""The group is a DNS label: a longer one would leave less of the 253 characters of a pool's name to the node."""


class PoolGroups:
    """Sets the group of each device to its product; a device that did not change stays the same object."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Device, Device]] = {}
        """By name: the device without a group and with it."""

    def apply(self, devices: Sequence[Device], topology: Topology) -> tuple[Device, ...]:
        """Return the devices with their group; those of one address share counters, and so have the same."""
        ids = {function.pci_address: function.device_id for function in topology.relevant}
        groups: dict[str, str] = {}
        known: dict[str, tuple[Device, Device]] = {}
        for device in devices:
            group = groups.setdefault(device.pci_address, _group(device, ids.get(device.pci_address, "")))
            before = self._known.get(device.name)
            if before is not None and before[0] is device and before[1].pool_group == group:
                known[device.name] = before
            else:
                known[device.name] = (device, msgspec.structs.replace(device, pool_group=group))
        self._known = known
        return tuple(grouped for _, grouped in known.values())


def _group(device: Device, device_id: str) -> str:
    """Return the product as a DNS label; without a known name, the vendor and the PCI device id."""
    product = device.attributes.get("productName")
    text = product.string if product is not None and product.string else f"{device.vendor} {device_id}"
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_CHARS].strip("-") or "unknown"
