"""Keeps an inventory current, and compares two of them.

The agent decides when to scan again (a uevent, a timer, a health event).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Set
from dataclasses import dataclass

from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import DeviceEvent, Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology.model import Topology


@dataclass(frozen=True, slots=True)
class InventoryDiff:
    """The difference from the previous inventory, by device name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Published differently: an attribute, a capacity or a taint."""
    health: tuple[str, ...] = ()
    """Healthy, unhealthy or unmonitored in another way than before."""
    problems: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.health or self.problems)


class InventoryTracker:
    """The current inventory of one host; safe to use from several threads."""

    def __init__(self, collector: Collector, topology: Topology, held: Collection[str] = frozenset()) -> None:
        """`held`: names of the devices that claims have."""
        self._collector = collector
        self._lock = threading.Lock()
        self._inventory = collector.collect(topology, held=held)

    @property
    def inventory(self) -> Inventory:
        """The last inventory; never blocks."""
        return self._inventory

    @property
    def kept(self) -> frozenset[str]:
        """Names of devices that the last `refresh` did not describe again."""
        return self._collector.kept

    def refresh(self, topology: Topology, touched: Set[str] | None = None, held: Collection[str] = frozenset()) -> None:
        """Take the inventory again, of all devices or after events of the functions at these addresses.

        `held`: names of the devices that claims have.

        It waits for vendor libraries up to their deadlines, so never call it on a loop.
        """
        with self._lock:
            self._inventory = self._collector.collect(topology, touched, held)

    def configure(self, settings: InventorySettings) -> None:
        """Use other rules from the next `refresh` on; raises UsageError if one can never work."""
        with self._lock:
            self._collector.configure(settings)

    def faults(self) -> list[DeviceEvent]:
        """Return the changes of devices since the last call; may wait as `refresh` does."""
        with self._lock:
            return self._collector.faults()

    def lost_event_stream(self) -> bool:
        """Return once that events are lost until a `refresh`; never blocks on a library."""
        with self._lock:
            return self._collector.lost_event_stream()

    @property
    def reports_events(self) -> bool:
        """True if any back end reports events."""
        return self._collector.reports_events

    def close(self) -> None:
        """Close the vendor libraries."""
        with self._lock:
            self._collector.close()


def diff(before: Inventory, after: Inventory) -> InventoryDiff:
    """Compare two inventories of one host."""
    old = {device.name: device for device in before.devices}
    new = {device.name: device for device in after.devices}
    both = [name for name in new if name in old]
    return InventoryDiff(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in both if not old[name].same_published_form(new[name])),
        health=tuple(name for name in both if old[name].health != new[name].health),
        problems=set(before.problems) != set(after.problems),
    )
