"""Four MI250X: each is two GPUs, each with its own address, memory and render node, in a NUMA node of one socket.

Source: the layout that the documentation of the systems Frontier and LUMI shows (buses c1 to de, NUMA nodes 3, 1, 0
and 2); figures: AMD data sheet. Assumed: root ports, separate ids of both GPUs of a card, front side.
"""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.amd import mi250x
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.network import broadcom

NAME = "mi250x"
_GIB = 1 << 30
_CARDS = ((0xC0, (0xC1, 0xC6), 3), (0xC8, (0xC9, 0xCE), 1), (0xD0, (0xD1, 0xD6), 0), (0xD8, (0xD9, 0xDE), 2))
"""Bus of the root, buses of the two dies, and NUMA node of each card."""
_GEN4 = LinkState(4, 16)


def _root(card: int, root: int, buses: tuple[int, int], node: int) -> HostBridge:
    ports = (
        port(
            f"0000:{root:02x}:0{2 * die + 1}.1",
            mi250x(f"0000:{bus:02x}:00.0", 2 * card + die, machine=NAME),
            link=_GEN4,
        )
        for die, bus in enumerate(buses)
    )
    return HostBridge(f"pci0000:{root:02x}", node, tuple(ports))


def machine() -> Machine:
    """The machine."""
    front = HostBridge(
        "pci0000:40",
        0,
        (
            port("0000:40:01.1", broadcom("0000:41:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
            port("0000:40:01.2", nvme("0000:42:00.0", 0), link=LinkState(4, 4)),
        ),
    )
    distances = [tuple(10 if here == there else 12 for there in range(4)) for here in range(4)]
    return Machine(
        name=NAME,
        description="4 x Instinct MI250X 128GB, 2 GPUs each, 1 Ethernet port, 1 NVMe, 1 socket of 4 NUMA nodes",
        source="layout: documentation of Frontier and LUMI; figures: AMD data sheet; ports and front side: assumed",
        nodes=tuple(
            NumaNode(f"{16 * node}-{16 * node + 15},{64 + 16 * node}-{79 + 16 * node}", 128 * _GIB, distances[node])
            for node in range(4)
        ),
        bridges=(*(_root(card, *where) for card, where in enumerate(_CARDS)), front),
        modules={"amdgpu": "6.7.0"},
    )
