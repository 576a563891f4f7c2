"""A server with eight Gaudi 3 modules, two behind each PCIe switch, with the RDMA devices of their scale-out ports."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.accelerators import gaudi3
from dra_simulate.parts.bridges import nvme, port, switch
from dra_simulate.parts.network import connectx7

NAME = "gaudi3"
_TIB = 1 << 40
_ROOTS = (0x19, 0x33, 0xB3, 0xCC)


def _quarter(number: int, bus: int) -> HostBridge:
    modules = [gaudi3(f"0000:{bus + 3 + half:02x}:00.0", 2 * number + half, machine=NAME) for half in range(2)]
    drive = nvme(f"0000:{bus + 5:02x}:00.0", number, generation=5)
    root_port = port(f"0000:{bus:02x}:01.0", switch(bus + 1, *modules, drive))
    return HostBridge(f"pci0000:{bus:02x}", number // 2, (root_port,))


def machine() -> Machine:
    """The machine."""
    adapter = connectx7("0000:59:00.0", 20, "ens89np0", 2, machine=NAME, ethernet=True)
    front = HostBridge("pci0000:58", 0, (port("0000:58:01.0", adapter, link=LinkState(5, 16)),))
    quarters = tuple(_quarter(number, bus) for number, bus in enumerate(_ROOTS))
    return Machine(
        name=NAME,
        description="8 x Gaudi 3 (HL-325L), 1 ConnectX-7 Ethernet, 4 NVMe, 2 sockets",
        source="ids: pci.ids; nodes: Linux habanalabs and Intel's DRA driver; layout and addresses: assumed",
        nodes=(NumaNode("0-55,112-167", _TIB, (10, 21)), NumaNode("56-111,168-223", _TIB, (21, 10))),
        bridges=tuple(sorted((front, *quarters), key=lambda bridge: bridge.name)),
        modules={"habanalabs": "1.22.1", "mlx5_core": "24.10-1.1.4"},
    )
