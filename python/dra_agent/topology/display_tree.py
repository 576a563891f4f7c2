"""The topology as a person pictures it: NUMA node, root complex, switch, device. Both pictures are drawn from this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from dra_agent.topology.model import CLAIMABLE, DeviceKind, Link, NumaNode, PciFunction, Topology

Holders = Mapping[str, Sequence[str]]
"""Holders: names of claims by PCI address."""


class KnownHolders(dict[str, Sequence[str]]):
    """Holders of devices, and the devices that can be claimed."""

    def __init__(self, holders: Holders, claimable: Iterable[str]) -> None:
        """`claimable`: PCI addresses of devices that are published, or have published parts."""
        super().__init__(holders)
        self.claimable = frozenset(claimable)


def is_free(holders: Holders, device: PciFunction) -> bool:
    """Whether a device can be claimed and is held by no claim."""
    if holders.get(device.pci_address):
        return False
    if isinstance(holders, KnownHolders):
        return device.pci_address in holders.claimable
    return device.kind in CLAIMABLE


@dataclass(frozen=True, slots=True)
class Leaf:
    """A device, with the virtual functions that were made of it."""

    device: PciFunction
    functions: tuple[PciFunction, ...] = ()


@dataclass(slots=True)
class TreeNode:
    """A place where devices meet: a NUMA node, a root bus, or a switch."""

    level: Literal["numa", "root", "switch"]
    name: str
    """The node's id ("?" where no node is known), the root bus, or the address of the switch's upstream port."""
    node: NumaNode | None = None
    branches: list[TreeNode] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)

    def all_leaves(self) -> Iterator[Leaf]:
        """Every device below this place."""
        yield from self.leaves
        for branch in self.branches:
            yield from branch.all_leaves()

    def child(self, level: Literal["root", "switch"], name: str) -> TreeNode:
        """The branch of that name below this one; made where it is missing."""
        for branch in self.branches:
            if branch.name == name:
                return branch
        branch = TreeNode(level, name)
        self.branches.append(branch)
        return branch


def build_tree(topology: Topology) -> list[TreeNode]:
    """One branch per NUMA node, also for those without devices, and a last one for devices of no known node."""
    nodes = {node.id: TreeNode("numa", str(node.id), node) for node in topology.numa_nodes}
    unknown = TreeNode("numa", "?")
    functions: dict[str, list[PciFunction]] = {}
    for device in topology.relevant:
        if device.physfn is not None and device.physfn in topology.by_address:
            functions.setdefault(device.physfn, []).append(device)
    for device in topology.relevant:
        if device.physfn in functions:
            continue
        node = unknown if device.numa_node is None else nodes.get(device.numa_node, unknown)
        place = node.child("root", device.pcie_root)
        for switch in switches(device):
            place = place.child("switch", switch)
        place.leaves.append(Leaf(device, tuple(functions.get(device.pci_address, ()))))
    branches = [nodes[key] for key in sorted(nodes)]
    if unknown.branches:
        branches.append(unknown)
    for branch in branches:
        _prune(branch)
    return branches


def switches(device: PciFunction) -> tuple[str, ...]:
    """Upstream ports above a device, top-most first: the second, fourth, ... bridge that another one follows."""
    if device.pcie_switch is None:
        return ()
    first = device.parents.index(device.pcie_switch)
    return device.parents[first : len(device.parents) - 1 : 2]


def _prune(branch: TreeNode) -> None:
    """Leave out switches inside a card: below another switch, with one device and no neighbour."""
    for child in branch.branches:
        _prune(child)
    if branch.level == "switch":
        for child in list(branch.branches):
            if not child.branches and len(child.leaves) == 1:
                branch.branches.remove(child)
                branch.leaves.extend(child.leaves)
    branch.leaves.sort(key=_order)


def _order(leaf: Leaf) -> tuple[int, int, str]:
    """GPUs first, then the devices that serve them; each kind by address, domains as numbers."""
    domain, rest = leaf.device.pci_address.split(":", 1)
    return list(DeviceKind).index(leaf.device.kind), int(domain, 16), rest


NOUNS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.FPGA: "FPGA",
    DeviceKind.ACCELERATOR: "accelerator",
    DeviceKind.NVME: "NVMe drive",
    DeviceKind.OTHER: "other function",
}

_TIB, _GIB, _MIB = 1 << 40, 1 << 30, 1 << 20


def memory(size: int) -> str:
    """An amount of memory: "1.5 TiB", "46 GiB"."""
    for unit, name in ((_TIB, "TiB"), (_GIB, "GiB"), (_MIB, "MiB")):
        if size >= unit:
            amount = size / unit
            return f"{amount:.1f} {name}" if amount < 10 and unit == _TIB else f"{amount:.0f} {name}"
    return f"{size} B"


def link(found: Link | None) -> str:
    """A PCIe link: "PCIe 5 x16", and its maximum if that is more; empty if unknown."""
    if found is None:
        return ""
    now, best = _speed(found.generation, found.width), _speed(found.max_generation, found.max_width)
    if not now or not best or now == best:
        return f"PCIe {now or best}"
    return f"PCIe {now} of {best}"


def _speed(generation: int | None, width: int | None) -> str:
    return " ".join(part for part in (str(generation or ""), f"x{width}" if width else "") if part)


def host_names(device: PciFunction) -> list[str]:
    """The names that the rest of the host knows a device by: interfaces, RDMA devices, DRM and other nodes."""
    drm = [name for name in (device.drm.card, device.drm.render) if name] if device.drm else []
    vfio = [device.vfio] if device.vfio else []
    accel = [PurePath(name).name for name in device.accel]
    return [*device.net, *device.infiniband, *drm, *accel, *vfio, *device.uio]


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 GPU", "8 GPUs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def summary(topology: Topology) -> str:
    """A summary of the host in one line: "2 NUMA nodes, 8 GPUs, 10 NICs"."""
    virtual = [device for device in topology.devices if device.physfn in topology.by_address]
    kinds = Counter(device.kind for device in topology.devices if device.physfn not in topology.by_address)
    parts = [count(len(topology.numa_nodes), "NUMA node")]
    parts += [count(kinds[kind], NOUNS[kind]) for kind in DeviceKind if kinds[kind]]
    if virtual:
        parts.append(count(len(virtual), "virtual function"))
    return ", ".join(parts)


def node_name(node: NumaNode | None) -> str:
    """The heading of a NUMA node, with its socket if known; None if the node is unknown."""
    if node is None:
        return "NUMA node unknown"
    return f"NUMA node {node.id}" if node.socket is None else f"socket {node.socket}, NUMA node {node.id}"


def node_facts(node: NumaNode) -> list[str]:
    """The CPUs and the memory of a NUMA node."""
    most = 40
    cpus = node.cpus if len(node.cpus) <= most else node.cpus[:most].rsplit(",", 1)[0] + ",\u2026"
    facts = [f"CPUs {cpus}" if cpus else "no CPUs"]
    if node.memory_bytes is not None:
        facts.append(memory(node.memory_bytes))
    return facts
