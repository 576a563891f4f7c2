"""Every claimable device of a host: attributes, device nodes and health."""

from __future__ import annotations

from dra_agent.inventory.api import (
    Attribute,
    Capacity,
    Counter,
    CounterConsumption,
    CounterSet,
    RequestPolicy,
    RequestRange,
    Taint,
)
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import (
    FAMILIES,
    Device,
    DeviceEvent,
    DeviceNode,
    Diagnostic,
    Exclusion,
    Family,
    Inventory,
    ObservedIssue,
    device_name,
    pool_name,
)
from dra_agent.inventory.settings import (
    AttributeRule,
    InventorySettings,
    PartitionRule,
    PassthroughRule,
    ShareRule,
    VersionValue,
)
from dra_agent.inventory.tracker import InventoryDiff, InventoryTracker

__all__ = [
    "FAMILIES",
    "ObservedIssue",
    "Attribute",
    "AttributeRule",
    "Capacity",
    "InventoryDiff",
    "Collector",
    "Counter",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceNode",
    "Exclusion",
    "Family",
    "DeviceEvent",
    "Inventory",
    "InventorySettings",
    "PartitionRule",
    "PassthroughRule",
    "Diagnostic",
    "RequestPolicy",
    "RequestRange",
    "ShareRule",
    "Taint",
    "VersionValue",
    "InventoryTracker",
    "device_name",
    "pool_name",
    "collect",
]
