"""Four MI300A: APUs, each in its own PCI domain and NUMA node, whose memory it shares with its CPU cores.

Source: modes and memory: kernel source (aqua_vanjaram.c, gmc_v9_0.c, amdgpu_amdkfd.c); figures: AMD data sheet.
Assumed: one PCI domain for each APU, root ports, front side.
"""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.amd import mi300a
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.network import broadcom

NAME = "mi300a"
_GIB = 1 << 30
_APUS = 4


def _root(number: int) -> HostBridge:
    gpu = mi300a(f"{number:04x}:01:00.0", number, machine=NAME)
    return HostBridge(f"pci{number:04x}:00", number, (port(f"{number:04x}:00:01.1", gpu),))


def machine() -> Machine:
    """The machine."""
    front = HostBridge(
        "pci0000:80",
        0,
        (
            port("0000:80:01.1", broadcom("0000:81:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
            port("0000:80:01.2", nvme("0000:82:00.0", 0), link=LinkState(4, 4)),
        ),
    )
    distances = [tuple(10 if here == there else 32 for there in range(_APUS)) for here in range(_APUS)]
    return Machine(
        name=NAME,
        description="4 x Instinct MI300A 128GB shared with the CPUs, 1 Ethernet port, 1 NVMe, 4 sockets",
        source="modes and memory: amdgpu (gmc_v9_0.c, amdgpu_amdkfd.c); figures: AMD data sheet; addresses: assumed",
        nodes=tuple(
            NumaNode(f"{24 * node}-{24 * node + 23},{96 + 24 * node}-{119 + 24 * node}", 128 * _GIB, distances[node])
            for node in range(_APUS)
        ),
        bridges=(*(_root(number) for number in range(_APUS)), front),
        modules={"amdgpu": "6.12.12"},
    )
