"""The topology as a tree for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
SHORTEST = 10
"""Width below which a product name is left out, in characters."""
GAP = "  "
GUIDE = 4
"""Characters by which each level of the tree is indented."""
PRODUCT = 3
OMITTED = (4, 5, 2, 6)
"""Columns that a narrow terminal does without, the first one first: link, driver, ids, names of the host."""


def draw(
    topology: Topology, *, holders: Holders | None = None, names: PciIds | None = None, width: int | None = None
) -> Tree:
    """NUMA nodes with their root complexes, switches and devices; `holders` adds the claims of each device.

    `width` is that of a terminal, in characters: columns are left out until a line for each device fits.
    """
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(summary(topology), style="bold"), guide_style="dim")
    drawing = _Drawing(topology, holders, PciIds.of_this_machine() if names is None else names)
    branches = build_tree(topology)
    if width is not None:
        drawing.fit(branches, width)
    for branch in branches:
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

    def fit(self, branches: Iterable[TreeNode], limit: int) -> None:
        """Leave out columns, and shorten products, until every line has at most `limit` characters if possible."""
        before = max((depth * GUIDE + len(self._state(leaf.device)) for leaf, depth in _placed(branches)), default=0)
        for column in OMITTED:
            if before + self._total() <= limit:
                return
            self._widths[column] = 0
        rest = self._widths[PRODUCT] - max(0, before + self._total() - limit)
        self._widths[PRODUCT] = rest if rest >= SHORTEST else 0

    def _total(self) -> int:
        return sum(width + len(GAP) for width in self._widths if width)

    def _state(self, device: PciFunction) -> str:
        if self._holders is None:
            return ""
        claims = self._holders.get(device.pci_address, ())
        if claims:
            return "held by " + ", ".join(claims)
        return "free" if is_free(self._holders, device) else ""

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
        return (
            device.kind,
            device.pci_address,
            ids,
            _cut(product, NARROW),
            link(device.card_link),
            device.driver or "no driver",
            " ".join(host_names(device)),
        )

    def _line(self, device: PciFunction) -> Text:
        from rich.text import Text

        styles = (COLOURS[device.kind], "bold", "", "", "dim", "dim", "dim")
        # A terminal wraps a line that does not fit; an id or a name in it remains whole.
        text = Text(no_wrap=True, overflow="ignore")
        for content, width, style in zip(self._columns(device), self._widths, styles, strict=True):
            if width:
                text.append(_cut(content, width).ljust(width) + GAP, style=style)
        state = self._state(device)
        text.append(state, style="green" if state == "free" else "red")
        text.rstrip()
        return text


def _cut(content: str, width: int) -> str:
    return content if len(content) <= width else content[: width - 1].rstrip() + "\u2026"


def _placed(branches: Iterable[TreeNode], depth: int = 1) -> Iterator[tuple[Leaf, int]]:
    """Yield every device with its level in the tree."""
    for branch in branches:
        yield from ((leaf, depth + 1) for leaf in branch.leaves)
        yield from _placed(branch.branches, depth + 1)
