"""Device plugins, as a Node's capacity shows them: which extended resources there are, and which devices each covers.

An extended resource that DRA itself serves (a DeviceClass with `extendedResourceName`) is in no node's capacity, so it
is not mistaken for a device plugin. Resource names of plugins are arbitrary and do not identify devices: names
that are not known are ignored, and a known name covers every device of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra_agent.conflicts.managers import Coverage, covers, resource_name
from dra_agent.inventory.model import Device

_NONE = re.compile(r"0*(\.0*)?([eE][0-9]+|[A-Za-z]+)?")
"""A quantity of zero, which the kubelet keeps for a removed plugin."""


@dataclass(frozen=True, slots=True)
class DevicePluginResource:
    """An extended resource of the node, and the devices that it covers."""

    resource: str
    """As the capacity names it: "nvidia.com/gpu"."""
    coverage: tuple[Coverage, ...]
    """Empty: the name does not show which devices it has."""

    def covers(self, device: Device) -> bool:
        """Return True if the plugin can allocate the device."""
        return covers(self.coverage, device)


def plugins_of(node: Mapping[str, Any]) -> list[DevicePluginResource]:
    """Return the device plugins that a Node shows, by the names of their resources.

    `node` is the v1 Node as JSON values; capacity counts, so that devices that are all unhealthy or in use count too.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    found = []
    for resource, amount in sorted(capacity.items()):
        row = resource_name(resource)
        if row is not None and (row.covers or row.is_opaque) and not _NONE.fullmatch(str(amount)):
            found.append(DevicePluginResource(resource, row.covers))
    return found
