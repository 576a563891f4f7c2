"""Eight MI300X, each behind three switches (two of the board, one for each GPU), which an adapter shares in part.

So a GPU and its adapter are PXB, not PIX: the path between them has more than one switch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, PciId
from dra_simulate.parts.amd import mi300x
from dra_simulate.parts.bridges import MELLANOX_SWITCH, nvme, port
from dra_simulate.parts.network import broadcom, connectx7

NAME = "mi300x"
_TIB = 1 << 40
_BUSES = (0x05, 0x0E, 0x17, 0x62, 0x98, 0xA8, 0xB8, 0xD8)
"""The address of the upstream port of each board's switch."""
_GPU_UPSTREAM = PciId(0x1022, 0x1500, 0x060400, 0x1022, 0x1500)
_GPU_DOWNSTREAM = PciId(0x1022, 0x1501, 0x060400, 0x1022, 0x1501)


SOURCE = "recording: ROCm/rccl tools/topo_expl, 8 MI300X and 8 ConnectX-7 (BSD-3-Clause); front side: assumed"
_MODULES = {"mlx5_core": "24.10-1.1.4"}


def _tray(machine: str, number: int, bus: int, gpu: Function) -> HostBridge:
    adapter = connectx7(f"0000:{bus + 2:02x}:00.0", number, f"ibp{bus + 2}s0", 10 + number, machine=machine)
    inside = port(
        f"0000:{bus + 5:02x}:00.0", port(f"0000:{bus + 6:02x}:00.0", gpu, id=_GPU_DOWNSTREAM), id=_GPU_UPSTREAM
    )
    second = port(
        f"0000:{bus + 3:02x}:00.0", port(f"0000:{bus + 4:02x}:00.0", inside, id=MELLANOX_SWITCH), id=MELLANOX_SWITCH
    )
    upstream = port(
        f"0000:{bus:02x}:00.0",
        port(f"0000:{bus + 1:02x}:00.0", adapter, id=MELLANOX_SWITCH),
        port(f"0000:{bus + 1:02x}:02.0", second, id=MELLANOX_SWITCH),
        id=MELLANOX_SWITCH,
    )
    root = bus - 1
    return HostBridge(f"pci0000:{root:02x}", 0 if number < 4 else 1, (port(f"0000:{root:02x}:01.0", upstream),))


def board(
    name: str, gpus: str, gpu: Callable[[str, int], Function], source: str, modules: Mapping[str, str]
) -> Machine:
    """A machine with eight GPUs on such a board; `gpu` makes one of its address and number."""
    front = HostBridge(
        "pci0000:7c",
        0,
        (
            port(
                "0000:7c:01.0",
                broadcom("0000:7d:00.0", "eno1np0", 2, machine=name),
                broadcom("0000:7d:00.1", "eno2np1", 3, machine=name),
                link=LinkState(3, 8),
            ),
            port("0000:7c:05.0", nvme("0000:7e:00.0", 0), link=LinkState(4, 4)),
        ),
    )
    trays = tuple(
        _tray(name, number, bus, gpu(f"0000:{bus + 7:02x}:00.0", number)) for number, bus in enumerate(_BUSES)
    )
    return Machine(
        name=name,
        description=f"8 x {gpus}, 8 ConnectX-7 InfiniBand, 2 Ethernet ports, 1 NVMe, 2 sockets",
        source=source,
        nodes=(NumaNode("0-55,112-167", _TIB, (10, 21)), NumaNode("56-111,168-223", _TIB, (21, 10))),
        bridges=tuple(sorted((*trays, front), key=lambda bridge: bridge.name)),
        modules={**modules, **_MODULES},
    )


def machine() -> Machine:
    """The machine."""
    return board(
        NAME,
        "Instinct MI300X 192GB",
        lambda address, number: mi300x(address, number, machine=NAME),
        SOURCE,
        {"amdgpu": "6.12.12"},
    )
