"""Every claimable device of a host: what it is, what a container needs of it, and whether it is well."""

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
from dra_agent.inventory.collect import Collector, take
from dra_agent.inventory.device import (
    FAMILIES,
    Ailment,
    Device,
    DeviceNode,
    Exclusion,
    Family,
    Fault,
    Inventory,
    Problem,
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
from dra_agent.inventory.watch import Change, Watch

__all__ = [
    "FAMILIES",
    "Ailment",
    "Attribute",
    "AttributeRule",
    "Capacity",
    "Change",
    "Collector",
    "Counter",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceNode",
    "Exclusion",
    "Family",
    "Fault",
    "Inventory",
    "InventorySettings",
    "PartitionRule",
    "PassthroughRule",
    "Problem",
    "RequestPolicy",
    "RequestRange",
    "ShareRule",
    "Taint",
    "VersionValue",
    "Watch",
    "device_name",
    "pool_name",
    "take",
]
