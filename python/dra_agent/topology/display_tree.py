"""The topology as a person pictures it: NUMA node, root complex, switch, device. Both pictures are drawn from this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dra_agent.topology.model import CLAIMABLE, DeviceKind, NumaNode, PciFunction, Topology

Holders = Mapping[str, Sequence[str]]
"""Who holds what: names of claims by PCI address."""


class KnownHolders(dict[str, Sequence[str]]):
    """Who holds what, where it is also known what can be claimed."""

    def __init__(self, holders: Holders, claimable: Iterable[str]) -> None:
        """`claimable`: PCI addresses of devices that are offered, or of which a part is."""
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


def grow(topology: Topology) -> list[TreeNode]:
    """One branch per NUMA node, also for those without devices, and a last one for devices of no known node."""
    nodes = {node.id: TreeNode("numa", str(node.id), node) for node in topology.numa_nodes}
    unknown = TreeNode("numa", "?")
    functions: dict[str, list[PciFunction]] = {}
    for device in topology.wanted:
        if device.physfn is not None and device.physfn in topology.by_address:
            functions.setdefault(device.physfn, []).append(device)
    for device in topology.wanted:
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
    """GPUs first, then what serves them; each kind by address, domains as numbers."""
    domain, rest = leaf.device.pci_address.split(":", 1)
    return list(DeviceKind).index(leaf.device.kind), int(domain, 16), rest
