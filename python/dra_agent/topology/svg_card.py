"""One device in the picture: its product, its connections, and its holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
_LEFT = 16
_ROOM = CARD_WIDTH - _LEFT - 12


def card(box: Box, leaf: Leaf, holders: Holders | None, claims: Mapping[str, str], names: PciIds) -> str:
    """The card of a device; `claims` maps each claim to its colour."""
    device, x, y = leaf.device, box.x, box.y
    colour = COLOURS[device.kind]
    product, connection = names.short(device), link(device.link)
    facts = "  \u00b7  ".join(part for part in (connection, device.driver or "no driver") if part)
    held = None if holders is None else tuple(holders.get(device.pci_address, ()))
    if holders is not None and not held and not is_free(holders, device):
        held = None
    parts = [
        f"<g>{hint(_details(device, product, held))}",
        rectangle(x, y, box.width, box.height, fill="#ffffff", stroke="#ced4da", radius=8),
        f'<path d="M{x + 8:g} {y:g}a8 8 0 0 0 -8 8v{box.height - 16:g}a8 8 0 0 0 8 8z" fill="{colour}"/>',
        label(x + _LEFT, y + 19, device.kind.upper(), "kind", fill=colour),
        label(x + CARD_WIDTH - 10, y + 19, device.pci_address, "small mono", end=True),
        label(x + _LEFT, y + 39, fit(product, _ROOM, 12, "bold"), "name"),
        label(x + _LEFT, y + 57, fit(facts, _ROOM, 11), "small"),
        label(x + _LEFT, y + 73, fit(" ".join(host_names(device)), _ROOM, 11, "mono"), "small mono"),
    ]
    below = y + CARD_HEIGHT
    if leaf.functions:
        parts += _functions(leaf.functions, x + _LEFT, below, colour, holders, claims)
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
) -> list[str]:
    """A square per virtual function, in the colour of its claim; as many as fit, then a number."""
    most = 12
    squares = []
    for index, function in enumerate(functions[:most]):
        held = (holders or {}).get(function.pci_address, ())
        fill = claims[held[0]] if held else "#ffffff"
        square = rectangle(x + 11 * index, y, 8, 8, fill=fill, stroke=fill if held else colour, radius=2)
        squares.append(f"<g>{hint(_details(function, 'virtual function', tuple(held)))}{square}</g>")
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


def _details(device: PciFunction, product: str, held: Sequence[str] | None) -> str:
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
    return "\n".join(lines)
