"""Other drivers on the node that advertise the same devices: device plugins and DRA drivers, and their effect here.

Two managers of one device can allocate it to two pods. This part detects that; the publisher omits the device.
"""

from __future__ import annotations

from dra_agent.conflicts.device_plugins import DevicePluginResource, plugins_of
from dra_agent.conflicts.find import ConflictGroup, DeviceConflicts, Observation, exclude, find_conflicts, observe
from dra_agent.conflicts.other_drivers import (
    ForeignDevice,
    ForeignSlices,
    foreign_devices,
    identities_of_host,
)
from dra_agent.conflicts.state_file import SavedConflicts, delete_conflicts, load_conflicts, save_conflicts

__all__ = [
    "ConflictGroup",
    "ForeignDevice",
    "ForeignSlices",
    "DevicePluginResource",
    "SavedConflicts",
    "Observation",
    "DeviceConflicts",
    "find_conflicts",
    "foreign_devices",
    "identities_of_host",
    "delete_conflicts",
    "observe",
    "plugins_of",
    "load_conflicts",
    "save_conflicts",
    "exclude",
]
