"""The topology as a picture: NUMA nodes, root complexes, switches, devices and their holders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dra_agent.topology.display_tree import (
    NOUNS,
    Holders,
    Leaf,
    TreeNode,
    build_tree,
    count,
    node_facts,
    node_name,
    summary,
)
from dra_agent.topology.model import DeviceKind, Topology
from dra_agent.topology.pci_ids import PciIds
from dra_agent.topology.svg_card import COLOURS, NO_MARK, DeviceMark, card, utilization_bar
from dra_agent.topology.svg_layout import Box, arrange, attribute, extent, fit, hint, label, rectangle, width

MARGIN, TITLE_HEIGHT, LINE = 28, 82, 20
MIN_WIDTH_PX = 700
SHOWN_PROBLEMS = 6

CLAIM_COLOURS = (
    "#d6336c", "#4263eb", "#e8590c", "#087f5b", "#7048e8",
    "#a61e4d", "#0b7285", "#5c940d", "#862e9c", "#364fc7",
)  # fmt: skip
"""One per claim in the order of appearance, from the start again where there are more claims; white can be read on
each."""

STYLE = """
text { font-family: Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif; fill: #212529; }
text.mono { font-family: 'SF Mono', 'Cascadia Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.title { font-size: 22px; font-weight: 700; }
.sub { font-size: 13px; fill: #495057; }
.node { font-size: 16px; font-weight: 700; }
.small { font-size: 11px; fill: #495057; }
.place { font-size: 12px; font-weight: 600; fill: #343a40; }
.kind { font-size: 10px; font-weight: 700; letter-spacing: 0.6px; }
.name { font-size: 12px; font-weight: 600; }
.held { font-size: 11px; font-weight: 600; fill: #ffffff; }
.free { font-size: 11px; fill: #495057; }
.wrong { font-size: 12px; fill: #c92a2a; }
"""

_STYLES = {"numa": ("#f1f3f5", "#adb5bd", 14), "root": ("#e7f0fb", "#a5c8ee", 10), "switch": ("#fff9e6", "#f0d27a", 8)}
"""Fill, outline and corner radius of each kind of place."""


def draw(
    topology: Topology,
    *,
    title: str,
    holders: Holders | None = None,
    names: PciIds | None = None,
    marks: Mapping[str, DeviceMark] | None = None,
) -> str:
    """An SVG document without external fonts, scripts or links.

    `holders` adds the holders of devices, `marks` their utilization and taints; both have PCI addresses.
    """
    names = PciIds.of_this_machine() if names is None else names
    marks = {} if marks is None else marks
    claims: dict[str, str] = {}
    for device in topology.relevant:
        for claim in (holders or {}).get(device.pci_address, ()):
            claims.setdefault(claim, CLAIM_COLOURS[len(claims) % len(CLAIM_COLOURS)])
    boxes = arrange(build_tree(topology), with_holders=holders is not None)
    for box in boxes:
        box.move(box.x + MARGIN, box.y + TITLE_HEIGHT)
    extent_right, bottom = extent(boxes)
    across = max(extent_right, MIN_WIDTH_PX) + MARGIN
    body = [label(MARGIN, 40, title, "title"), label(MARGIN, 62, summary(topology), "sub")]
    body += _distances(boxes)
    for box in boxes:
        for inner in box.walk():
            if isinstance(inner.of, Leaf):
                body.append(card(inner, inner.of, holders, claims, names, marks))
            else:
                body.append(_place(inner, inner.of, topology, names))
    shown = [marks.get(device.pci_address, NO_MARK) for device in topology.relevant]
    notes = list(_notes(topology, shown, bottom + 32, across - 2 * MARGIN))
    down = bottom + 32 + LINE * len(notes)
    return "\n".join((
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across:g}" height="{down:g}" '
        f'viewBox="0 0 {across:g} {down:g}" role="img" aria-label={attribute(title)}>',
        hint(title),
        f"<style>{STYLE}</style>",
        rectangle(0, 0, across, down, fill="#ffffff"),
        *body,
        *notes,
        "</svg>\n",
    ))  # fmt: skip


def _place(box: Box, branch: TreeNode, topology: Topology, names: PciIds) -> str:
    fill, stroke, radius = _STYLES[branch.level]
    parts = [rectangle(box.x, box.y, box.width, box.height, fill=fill, stroke=stroke, radius=radius)]
    if branch.level == "numa":
        parts += _node_heading(box, branch)
    elif branch.level == "root":
        parts.append(label(box.x + 12, box.y + 18, branch.name, "place mono"))
    else:
        bridge = topology.by_address.get(branch.name)
        parts.append(label(box.x + 10, box.y + 18, f"switch {branch.name}", "place"))
        taken = width(f"switch {branch.name}", 12, "bold") + 20
        product = fit(names.short(bridge), box.width - taken - 10, 11) if bridge else ""
        if len(product) > 4:
            parts.append(label(box.x + box.width - 10, box.y + 18, product, "small", end=True))
    return "".join(parts)


def _node_heading(box: Box, branch: TreeNode) -> Iterator[str]:
    name = node_name(branch.node)
    yield label(box.x + 16, box.y + 29, name[0].upper() + name[1:], "node")
    if branch.node is not None:
        facts = "  \u00b7  ".join(node_facts(branch.node))
        room = box.width - 40 - width(name, 16, "bold")
        yield label(box.x + box.width - 16, box.y + 28, fit(facts, room, 13), "sub", end=True)


def _distances(boxes: Sequence[Box]) -> Iterator[str]:
    """A line between adjacent NUMA nodes, labeled with their distance."""
    ids = [box.of.node.id for box in boxes if isinstance(box.of, TreeNode) and box.of.node]
    for one, other in pairwise(boxes):
        nodes = [box.of.node for box in (one, other) if isinstance(box.of, TreeNode) and box.of.node]
        if len(nodes) < 2 or len(nodes[0].distances) != len(ids):
            continue
        if one.y == other.y:
            x, y = (one.x + one.width + other.x) / 2, one.y + 23
            line = f'<path d="M{one.x + one.width:g} {y:g}H{other.x:g}" stroke="#868e96" stroke-width="3"/>'
        else:
            x, y = one.x + 60, (one.y + one.height + other.y) / 2
            line = f'<path d="M{x:g} {one.y + one.height:g}V{other.y:g}" stroke="#868e96" stroke-width="3"/>'
            if one.x != other.x:
                continue
        distance = str(nodes[0].distances[ids.index(nodes[1].id)])
        yield (
            f"<g>{hint(f'NUMA distance {distance}')}{line}"
            f"{rectangle(x - 13, y - 9, 26, 18, fill='#ffffff', stroke='#868e96', radius=9)}"
            f'<text x="{x:g}" y="{y + 4:g}" class="small" text-anchor="middle">{distance}</text></g>'
        )


def _notes(topology: Topology, marks: Sequence[DeviceMark], top: float, room: float) -> Iterator[str]:
    """The legend, the parts that are not drawn, and the damaged parts; one line each."""
    x, legend = float(MARGIN), []
    for kind in DeviceKind:
        if kind is not DeviceKind.OTHER and any(device.kind is kind for device in topology.devices):
            legend.append(rectangle(x, top - 10, 12, 12, fill=COLOURS[kind], radius=3))
            legend.append(label(x + 18, top, NOUNS[kind], "sub"))
            x += 18 + width(NOUNS[kind], 13) + 22
    if any(mark.utilization_ratio is not None for mark in marks):
        legend += (
            utilization_bar(x, top - 6, 30, 0.5, COLOURS[DeviceKind.GPU]),
            label(x + 36, top, "utilization", "sub"),
        )
        x += 36 + width("utilization", 13) + 22
    if any(mark.taints for mark in marks):
        legend.append(label(x, top, "\u26a0 tainted", "wrong"))
        x += width("\u26a0 tainted", 13) + 22
    others = len(topology.devices) - len(topology.relevant)
    if others:
        legend.append(label(x, top, f"{count(others, 'other PCI function')} not drawn", "sub"))
    yield "".join(legend)
    shown = topology.problems[:SHOWN_PROBLEMS]
    for index, problem in enumerate(shown, 1):
        yield label(MARGIN, top + LINE * index, fit(f"\u26a0 {problem}", room, 12), "wrong")
    more = len(topology.problems) - len(shown)
    if more:
        yield label(MARGIN, top + LINE * (len(shown) + 1), f"and {count(more, 'problem')} more", "wrong")
