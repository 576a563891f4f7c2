"""The PCIe and NUMA topology of a host: what is there, where it hangs, and how far apart things are."""

from __future__ import annotations

from dra_agent.topology.live import LiveTopology, scan
from dra_agent.topology.model import Change, Device, Distance, Drm, Kind, Link, NumaNode, Problem, Sriov, Topology
from dra_agent.topology.uevent import Received, Uevent, UeventSocket

__all__ = [
    "Change",
    "Device",
    "Distance",
    "Drm",
    "Kind",
    "Link",
    "LiveTopology",
    "NumaNode",
    "Problem",
    "Received",
    "Sriov",
    "Topology",
    "Uevent",
    "UeventSocket",
    "scan",
]
