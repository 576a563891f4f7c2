"""The topology as a tree for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_agent.topology.display_tree import (
    Holders,
    Leaf,
    TreeNode,
    build_tree,
    count,
    host_names,
    is_free,
    link,
    node_facts,
    node_name,
    summary,
)
from dra_agent.topology.model import DeviceKind, PciFunction, Topology
from dra_agent.topology.pci_ids import PciIds

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

COLOURS = {
    DeviceKind.GPU: "green",
    DeviceKind.NIC: "blue",
    DeviceKind.FPGA: "magenta",
    DeviceKind.ACCELERATOR: "yellow",
    DeviceKind.NVME: "cyan",
    DeviceKind.OTHER: "white",
}


NARROW = 32
"""Longest product name, in characters; longer names are cut."""


def draw(topology: Topology, *, holders: Holders | None = None, names: PciIds | None = None) -> Tree:
    """NUMA nodes with their root complexes, switches and devices; `holders` adds the claims of each device."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(summary(topology), style="bold"), guide_style="dim")
    drawing = _Drawing(topology, holders, PciIds.of_this_machine() if names is None else names)
    for branch in build_tree(topology):
        drawing.branch(root, branch)
    return root


class _Drawing:
    def __init__(self, topology: Topology, holders: Holders | None, names: PciIds) -> None:
        self._topology = topology
        self._holders = holders
        self._names = names
        # Siblings are in columns, each as wide as its widest text anywhere in the tree.
        rows = [self._columns(device) for device in topology.relevant]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def branch(self, parent: Tree, branch: TreeNode) -> None:
        below = parent.add(self._heading(branch))
        for leaf in branch.leaves:
            self._leaf(below, leaf)
        for inner in branch.branches:
            self.branch(below, inner)

    def _heading(self, branch: TreeNode) -> Text:
        from rich.text import Text

        if branch.level == "root":
            return Text(branch.name, style="bold")
        if branch.level == "switch":
            bridge = self._topology.by_address.get(branch.name)
            product = self._names.short(bridge) if bridge else ""
            return Text.assemble("switch ", (branch.name, "bold"), (f"  {product}" if product else "", "dim"))
        facts = node_facts(branch.node) if branch.node else []
        return Text("  ".join((node_name(branch.node), *facts)), style="bold")

    def _leaf(self, parent: Tree, leaf: Leaf) -> None:
        from rich.text import Text

        below = parent.add(self._line(leaf.device))
        shown = [function for function in leaf.functions if self._holders and self._holders.get(function.pci_address)]
        for function in shown:
            below.add(self._line(function))
        rest = [function for function in leaf.functions if function not in shown]
        free = 0 if self._holders is None else sum(is_free(self._holders, function) for function in rest)
        if free:
            below.add(Text(count(free, "free virtual function"), style="dim"))
        if len(rest) > free:
            below.add(Text(count(len(rest) - free, "virtual function"), style="dim"))

    def _columns(self, device: PciFunction) -> tuple[str, ...]:
        ids = f"{device.vendor_id[2:]}:{device.device_id[2:]}"
        product = self._names.short(device)
        if product.endswith(ids):
            product = product.removesuffix(ids).rstrip()
        if len(product) > NARROW:
            product = product[: NARROW - 1].rstrip() + "\u2026"
        return (
            device.kind,
            device.pci_address,
            ids,
            product,
            link(device.link),
            device.driver or "no driver",
            " ".join(host_names(device)),
        )

    def _line(self, device: PciFunction) -> Text:
        from rich.text import Text

        styles = (COLOURS[device.kind], "bold", "", "", "dim", "dim", "dim")
        text = Text(overflow="fold")
        for content, width, style in zip(self._columns(device), self._widths, styles, strict=True):
            if width:
                text.append(content.ljust(width) + "  ", style=style)
        if self._holders is not None:
            claims = self._holders.get(device.pci_address, ())
            if claims:
                text.append("held by " + ", ".join(claims), style="red")
            elif is_free(self._holders, device):
                text.append("free", style="green")
        text.rstrip()
        return text
