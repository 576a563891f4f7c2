"""Eight MI210, four on a bridge (hive) at each socket, each behind the switch of its own card.

Source: a recording of the compute topology of such a host (ROCm/k8s-device-plugin testdata, Apache-2.0): addresses,
render nodes, hives, NUMA nodes and the order of the GPUs. Assumed: root ports, ids of the cards' switches, front side.
"""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode, PciId
from dra_simulate.parts.amd import mi210
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.network import broadcom

NAME = "mi210"
_GIB = 1 << 30
_BUSES = (0x63, 0x43, 0x03, 0x26, 0xE3, 0xC3, 0x83, 0xA3)
"""Of the GPUs, in the order in which the driver found them."""
_UPSTREAM, _DOWNSTREAM = PciId(0x1002, 0x1478, 0x060400), PciId(0x1002, 0x1479, 0x060400)
_GEN4 = LinkState(4, 16)


def _root(number: int, bus: int) -> HostBridge:
    gpu = mi210(f"0000:{bus:02x}:00.0", number, 128 + number, machine=NAME, hive=1 if number < 4 else 2)
    downstream = port(f"0000:{bus - 1:02x}:00.0", gpu, id=_DOWNSTREAM, link=_GEN4)
    upstream = port(f"0000:{bus - 2:02x}:00.0", downstream, id=_UPSTREAM, link=_GEN4)
    root = bus & 0xE0
    return HostBridge(
        f"pci0000:{root:02x}", 0 if number < 4 else 1, (port(f"0000:{root:02x}:01.1", upstream, link=_GEN4),)
    )


def machine() -> Machine:
    """The machine."""
    front = HostBridge(
        "pci0000:70",
        0,
        (
            port("0000:70:03.1", broadcom("0000:71:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
            port("0000:70:03.2", nvme("0000:72:00.0", 0), link=LinkState(4, 4)),
        ),
    )
    return Machine(
        name=NAME,
        description="8 x Instinct MI210 64GB in two hives of 4, 1 Ethernet port, 1 NVMe, 2 sockets",
        source="recording: ROCm/k8s-device-plugin testdata, KFD of 8 MI210 (Apache-2.0); ports and front side: assumed",
        nodes=(NumaNode("0-63,128-191", 512 * _GIB, (10, 32)), NumaNode("64-127,192-255", 512 * _GIB, (32, 10))),
        bridges=(*(_root(number, bus) for number, bus in enumerate(_BUSES)), front),
        modules={"amdgpu": "6.7.0"},
    )
