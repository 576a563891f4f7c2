"""Others on the node who give out the same devices: device plugins and other DRA drivers, and what follows for our own.

Two managers of one device give it to two pods. This part finds out and decides; the publisher publishes less.
"""

from __future__ import annotations

from dra_agent.conflicts.device_plugins import DevicePluginResource, plugins_of
from dra_agent.conflicts.other_drivers import ForeignDevice, foreign_devices
from dra_agent.conflicts.state_file import SavedConflicts, delete, load_conflicts, save_conflicts
from dra_agent.conflicts.verdict import DeviceConflicts, Observation, exclude, find_conflicts, observe

__all__ = [
    "ForeignDevice",
    "DevicePluginResource",
    "SavedConflicts",
    "Observation",
    "DeviceConflicts",
    "find_conflicts",
    "foreign_devices",
    "delete",
    "observe",
    "plugins_of",
    "load_conflicts",
    "save_conflicts",
    "exclude",
]
