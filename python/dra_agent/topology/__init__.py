"""The PCIe and NUMA topology of a host: functions, their parents, and distances."""

from __future__ import annotations

from dra_agent.topology.live import LiveTopology, scan
from dra_agent.topology.model import (
    DeviceKind,
    Distance,
    Drm,
    Link,
    NumaNode,
    PciFunction,
    ScanProblem,
    Sriov,
    Topology,
    TopologyChange,
)
from dra_agent.topology.uevent import Uevent, UeventBatch, UeventSocket

__all__ = [
    "TopologyChange",
    "PciFunction",
    "Distance",
    "Drm",
    "DeviceKind",
    "Link",
    "LiveTopology",
    "NumaNode",
    "ScanProblem",
    "UeventBatch",
    "Sriov",
    "Topology",
    "Uevent",
    "UeventSocket",
    "scan",
]
