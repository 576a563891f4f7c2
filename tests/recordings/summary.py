"""A short description of what the agent concludes about a host, to compare with an earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import gpu_nodes
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.slices import desired_slices
from dra_agent.topology import Topology, scan

from .conclusions import PARTITIONED

_ATTRIBUTES = ("productName", "architecture", "profile", "driverVersion", "linkType")


def summary(host: Host) -> dict[str, Any]:
    """Return topology, devices and slices in a line each."""
    topology = scan(host, distances=True)
    inventory = collect(host, topology, InventorySettings())
    return {
        "functions": _count(str(function.kind) for function in topology.devices),
        "NUMA nodes": len(topology.numa_nodes),
        "distances": _distances(topology),
        "devices": {device.name: _device(device) for device in inventory.devices},
        "KFD": {
            address: f"{len(nodes)} x {nodes[0].isa}, {sum(node.compute_units or 0 for node in nodes)} compute units"
            for address, nodes in sorted(gpu_nodes(host, []).items())
        },
        "slices": _slices(inventory),
        "slices with partitions": _slices(collect(host, topology, PARTITIONED)),
    }


def _device(device: Device) -> str:
    attributes = [device.attributes[name] for name in _ATTRIBUTES if name in device.attributes]
    memory = device.capacity.get("memory")
    parts = [
        device.vendor or "",
        *(str(attribute.value) for attribute in attributes),
        memory.value if memory is not None else "",
        device.health,
        " ".join(sorted(node.path for node in device.nodes)),
    ]
    return ", ".join(part for part in parts if part)


def _distances(topology: Topology) -> dict[str, int]:
    """Count the pairs of devices of each distance."""
    return _count(str(distance) for distance in topology.distances.values())


def _slices(inventory: Inventory) -> list[str]:
    desired = desired_slices(inventory, node="node", driver="dra-agent.internal", naming="fixed")
    assert desired.problems == []
    lines = []
    for slice_ in desired.slices:
        spec = slice_["spec"]
        kind = "devices" if spec.get("devices") else "sharedCounters"
        names = [entry["name"] for entry in spec.get(kind, ())]
        lines.append(f"{spec['pool']['name']}: {len(names)} {kind}, {names[0]} to {names[-1]}")
    return lines


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
