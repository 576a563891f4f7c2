"""Scans a host again."""

from __future__ import annotations

from dra_agent.host import Host
from dra_agent.inventory.tracker import InventoryDiff, InventoryTracker, diff
from dra_agent.topology import scan


def rescan(tracker: InventoryTracker, host: Host) -> InventoryDiff:
    """Take the inventory again, and return the difference from the previous one."""
    before = tracker.inventory
    tracker.refresh(scan(host))
    return diff(before, tracker.inventory)
