"""A server with an HGX H200 board: four PCIe switches, each with two GPUs and two adapters, and four NVSwitches."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import H200_SXM
from dra_simulate.parts.bridges import PLX_SWITCH, nvme, port, switch
from dra_simulate.parts.network import connectx7
from dra_simulate.parts.nvidia import ONE_HOST_FABRIC, gpu, nvswitch

NAME = "hgx-h200"
_TIB = 1 << 40
_ROOTS = (0x17, 0x48, 0x93, 0xC4)
_NVSWITCHES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x07, 0x0B))
_LINKS = tuple(name for name, count in zip(_NVSWITCHES, (5, 4, 5, 4), strict=True) for _ in range(count))


def _quarter(number: int, bus: int) -> HostBridge:
    """A root with a switch: adapter, GPU, adapter, GPU, then a drive."""
    slots = []
    for half in range(2):
        which = 2 * number + half
        near = bus + 3 + 2 * half
        slots.append(connectx7(f"0000:{near:02x}:00.0", which, f"ibp{near}s0", 10 + which, machine=NAME))
        address = f"0000:{near + 1:02x}:00.0"
        slots.append(gpu(address, H200_SXM, which, machine=NAME, nvlinks=_LINKS, fabric=ONE_HOST_FABRIC))
    drive = nvme(f"0000:{bus + 7:02x}:00.0", 2 + number, generation=5)
    return HostBridge(
        f"pci0000:{bus:02x}", number // 2, (port(f"0000:{bus:02x}:01.0", switch(bus + 1, *slots, drive)),)
    )


def _front(bus: int, number: int) -> HostBridge:
    """A root with an Ethernet adapter and a boot drive."""
    return HostBridge(
        f"pci0000:{bus:02x}",
        number,
        (
            port(
                f"0000:{bus:02x}:01.0",
                connectx7(
                    f"0000:{bus + 1:02x}:00.0", 8 + number, f"ens{bus}np0", 30 + number, machine=NAME, ethernet=True
                ),
            ),
            port(f"0000:{bus:02x}:05.0", nvme(f"0000:{bus + 2:02x}:00.0", number), link=LinkState(4, 4)),
        ),
    )


def machine() -> Machine:
    """The machine."""
    switches = tuple(nvswitch(address, number) for number, address in enumerate(_NVSWITCHES))
    slow = LinkState(3, 4)
    chipset = HostBridge(
        "pci0000:00", 0, (port("0000:00:0e.0", switch(0x05, *switches, id=PLX_SWITCH, link=slow), link=slow),)
    )
    quarters = tuple(_quarter(number, bus) for number, bus in enumerate(_ROOTS))
    return Machine(
        name=NAME,
        description="8 x H200 141GB SXM, 4 NVSwitch, 8 ConnectX-7 InfiniBand + 2 Ethernet, 6 NVMe, 2 sockets",
        source="figures: NVIDIA H200 data sheet; switches as on HGX boards; addresses: assumed",
        nodes=(NumaNode("0-47,96-143", _TIB, (10, 21)), NumaNode("48-95,144-191", _TIB, (21, 10))),
        bridges=tuple(sorted((chipset, *quarters, _front(0x37, 0), _front(0xB3, 1)), key=lambda bridge: bridge.name)),
        modules={"mlx5_core": "24.10-1.1.4"},
        nvidia=NvidiaDriver("615.71.05", 13040),
    )
