"""An NVIDIA DGX H100: every GPU shares a PCIe switch with a ConnectX-7 and a drive; four NVSwitches join the GPUs."""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import H100_SXM
from dra_simulate.parts.bridges import PLX_SWITCH, nvme, port, switch
from dra_simulate.parts.network import connectx7
from dra_simulate.parts.nvidia import ONE_HOST_FABRIC, gpu, nvswitch

NAME = "dgx-h100"
_TIB = 1 << 40
_GPU_ROOTS = (0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9)
_COMPUTE_HCAS = (0, 2, 3, 4, 5, 7, 8, 9)
"""Numbers of the adapters next to the GPUs; 1 and 6, between them by address, are the storage adapters."""
_NVSWITCHES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x07, 0x0B))


def _gpu_tray(number: int, bus: int) -> HostBridge:
    """A root with a switch: the adapter on its first port, a drive on the second, the GPU on the fourth."""
    # 18 links, spread over the four NVSwitches as 5, 4, 5, 4.
    links = tuple(name for name, count in zip(_NVSWITCHES, (5, 4, 5, 4), strict=True) for _ in range(count))
    accelerator = gpu(f"0000:{bus + 6:02x}:00.0", H100_SXM, number, machine=NAME, nvlinks=links, fabric=ONE_HOST_FABRIC)
    hca = connectx7(f"0000:{bus + 3:02x}:00.0", _COMPUTE_HCAS[number], f"ibp{bus + 3}s0", 10 + number, machine=NAME)
    drive = nvme(f"0000:{bus + 4:02x}:00.0", 2 + number)
    return HostBridge(
        f"pci0000:{bus:02x}",
        numa_node=0 if number < 4 else 1,
        functions=(port(f"0000:{bus:02x}:01.0", switch(bus + 1, hca, drive, None, accelerator)),),
    )


def _storage(bus: int, number: int, name: str, index: int, numa_node: int) -> HostBridge:
    hca = connectx7(f"0000:{bus + 3:02x}:00.0", number, name, index, machine=NAME, ethernet=True)
    return HostBridge(f"pci0000:{bus:02x}", numa_node, (port(f"0000:{bus:02x}:05.0", hca),))


def _chipset() -> HostBridge:
    """The first root: two boot drives, and the NVSwitches behind a small switch."""
    switches: tuple[Function, ...] = tuple(nvswitch(address, number) for number, address in enumerate(_NVSWITCHES))
    slow = LinkState(3, 4)
    return HostBridge(
        "pci0000:00",
        numa_node=0,
        functions=(
            port("0000:00:0c.0", nvme("0000:01:00.0", 0, generation=3), link=slow),
            port("0000:00:0d.0", nvme("0000:02:00.0", 1, generation=3), link=slow),
            port("0000:00:0e.0", switch(0x05, *switches, id=PLX_SWITCH, link=slow), link=slow),
        ),
    )


def machine() -> Machine:
    """The machine."""
    trays = tuple(_gpu_tray(number, bus) for number, bus in enumerate(_GPU_ROOTS))
    storage = (_storage(0x26, 1, "ens6np0", 30, 0), _storage(0xA7, 6, "ens7np0", 31, 1))
    return Machine(
        name=NAME,
        description="8 x H100 80GB SXM, 4 NVSwitch, 8 ConnectX-7 InfiniBand + 2 Ethernet, 10 NVMe, 2 sockets",
        source="adapters and buses: NVIDIA DGX H100 user guide; figures: data sheet; drives and switches: assumed",
        nodes=(
            NumaNode("0-55,112-167", _TIB, (10, 21)),
            NumaNode("56-111,168-223", _TIB, (21, 10)),
        ),
        bridges=tuple(sorted((_chipset(), *trays, *storage), key=lambda bridge: bridge.name)),
        modules={"mlx5_core": "24.10-1.1.4"},
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
