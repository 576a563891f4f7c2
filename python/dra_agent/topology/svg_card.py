"""One device in the picture: its product, its connections, its holder, its utilization and its taints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_agent.topology.display_tree import Holders, Leaf, count, host_names, is_free, link
from dra_agent.topology.model import DeviceKind, PciFunction
from dra_agent.topology.pci_ids import PciIds
from dra_agent.topology.svg_layout import (
    CARD_HEIGHT,
    CARD_WIDTH,
    FUNCTIONS_HEIGHT,
    HOLDER_HEIGHT,
    Box,
    fit,
    hint,
    label,
    rectangle,
    width,
)

COLOURS = {
    DeviceKind.GPU: "#2f9e44",
    DeviceKind.NIC: "#1971c2",
    DeviceKind.FPGA: "#9c36b5",
    DeviceKind.ACCELERATOR: "#e67700",
    DeviceKind.NVME: "#0c8599",
    DeviceKind.OTHER: "#868e96",
}
FREE = "#e9ecef"
TAINTED = "#c92a2a"
UTILIZATION_LEVELS = 4
"""Parts of the bar. Few of them: a page loads the picture again whenever it changes."""
BAR_HEIGHT = 4
_LEFT = 16
_ROOM = CARD_WIDTH - _LEFT - 12


@dataclass(frozen=True, slots=True)
class DeviceMark:
    """What else is known of a PCI function."""

    utilization_ratio: float | None = None
    """0 to 1."""
    taints: tuple[str, ...] = ()
    """KEY:EFFECT of those that exclude it, or a partition of it, from claims."""


NO_MARK = DeviceMark()


def card(
    box: Box,
    leaf: Leaf,
    holders: Holders | None,
    claims: Mapping[str, str],
    names: PciIds,
    marks: Mapping[str, DeviceMark],
) -> str:
    """The card of a device; `claims` maps each claim to its colour, `marks` has addresses."""
    device, x, y = leaf.device, box.x, box.y
    colour = COLOURS[device.kind]
    product, connection = names.short(device), link(device.card_link)
    facts = "  \u00b7  ".join(part for part in (connection, device.driver or "no driver") if part)
    held = None if holders is None else tuple(holders.get(device.pci_address, ()))
    if holders is not None and not held and not is_free(holders, device):
        held = None
    mark = marks.get(device.pci_address, NO_MARK)
    outline = TAINTED if mark.taints else "#ced4da"
    parts = [
        f"<g>{hint(_details(device, product, held, mark))}",
        rectangle(x, y, box.width, box.height, fill="#ffffff", stroke=outline, radius=8),
        f'<path d="M{x + 8:g} {y:g}a8 8 0 0 0 -8 8v{box.height - 16:g}a8 8 0 0 0 8 8z" fill="{colour}"/>',
        label(x + _LEFT, y + 19, device.kind.upper(), "kind", fill=colour),
        label(x + CARD_WIDTH - 10, y + 19, device.pci_address, "small mono", end=True),
        label(x + _LEFT, y + 39, fit(product, _ROOM, 12, "bold"), "name"),
        label(x + _LEFT, y + 57, fit(facts, _ROOM, 11), "small"),
        label(x + _LEFT, y + 73, fit(" ".join(host_names(device)), _ROOM, 11, "mono"), "small mono"),
    ]
    if mark.taints:
        parts.append(label(x + _LEFT + width(device.kind, 10, "bold") + 14, y + 19, "\u26a0", "wrong"))
    if mark.utilization_ratio is not None:
        parts.append(utilization_bar(x + _LEFT, y + box.height - BAR_HEIGHT - 2, _ROOM, mark.utilization_ratio, colour))
    below = y + CARD_HEIGHT
    if leaf.functions:
        parts += _functions(leaf.functions, x + _LEFT, below, colour, holders, claims, marks)
        below += FUNCTIONS_HEIGHT
    if held is not None:
        parts += _holder(held, x + _LEFT, below, claims)
    return "".join([*parts, "</g>"])


def _functions(
    functions: Sequence[PciFunction],
    x: float,
    y: float,
    colour: str,
    holders: Holders | None,
    claims: Mapping[str, str],
    marks: Mapping[str, DeviceMark],
) -> list[str]:
    """A square per virtual function, in the colour of its claim; as many as fit, then a number."""
    most = 12
    squares = []
    for index, function in enumerate(functions[:most]):
        held = (holders or {}).get(function.pci_address, ())
        fill = claims[held[0]] if held else "#ffffff"
        mark = marks.get(function.pci_address, NO_MARK)
        stroke = TAINTED if mark.taints else fill if held else colour
        square = rectangle(x + 11 * index, y, 8, 8, fill=fill, stroke=stroke, radius=2)
        squares.append(f"<g>{hint(_details(function, 'virtual function', tuple(held), mark))}{square}</g>")
    total = f"{count(len(functions), 'VF')}"
    squares.append(label(x + 11 * min(len(functions), most) + 3, y + 8, total, "small"))
    return squares


def _holder(held: Sequence[str], x: float, y: float, claims: Mapping[str, str]) -> list[str]:
    room = CARD_WIDTH - _LEFT - 10
    if not held:
        return [rectangle(x, y - 4, 40, HOLDER_HEIGHT - 4, fill=FREE, radius=9), label(x + 9, y + 9, "free", "free")]
    more = f" +{len(held) - 1}" if len(held) > 1 else ""
    text = fit(held[0], room - 18 - width(more, 11, "bold"), 11, "bold") + more
    pill = min(room, width(text, 11, "bold") + 18)
    return [
        rectangle(x, y - 4, pill, HOLDER_HEIGHT - 4, fill=claims[held[0]], radius=9),
        label(x + 9, y + 9, text, "held"),
    ]


def utilization_bar(x: float, y: float, across: float, ratio: float, colour: str) -> str:
    """A bar of equal parts, of which as many have the colour as the utilization reaches into."""
    level, part = _level(ratio), (across + 2) / UTILIZATION_LEVELS
    return "".join(
        rectangle(x + part * index, y, part - 2, BAR_HEIGHT, fill=colour if index < level else FREE, radius=2)
        for index in range(UTILIZATION_LEVELS)
    )


def _level(ratio: float) -> int:
    return math.ceil(min(max(ratio, 0.0), 1.0) * UTILIZATION_LEVELS)


def _details(device: PciFunction, product: str, held: Sequence[str] | None, mark: DeviceMark) -> str:
    lines = [
        f"{device.kind} {device.pci_address}",
        f"{product} [{device.vendor_id[2:]}:{device.device_id[2:]}]",
        f"below {' / '.join((device.pcie_root, *device.parents))}",
        f"NUMA node {'unknown' if device.numa_node is None else device.numa_node}",
    ]
    if device.iommu_group is not None:
        lines.append(f"IOMMU group {device.iommu_group}")
    if held is not None:
        lines.append("held by " + ", ".join(held) if held else "free")
    if mark.utilization_ratio is not None:
        percent = 100 * _level(mark.utilization_ratio) // UTILIZATION_LEVELS
        lines.append(f"utilization up to {percent} %" if percent else "utilization 0 %")
    lines += (f"taint {taint}" for taint in mark.taints)
    return "\n".join(lines)
