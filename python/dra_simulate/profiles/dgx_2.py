"""An NVIDIA DGX-2: 16 V100 in pairs of pairs below four trees of PCIe switches, and two boards of six NVSwitches."""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.models import V100_SXM3
from dra_simulate.parts.bridges import port
from dra_simulate.parts.nvidia import first_nvswitch, gpu

NAME = "dgx-2"
_GIB = 1 << 30
_PORT = PciId(0x8086, 0x2030, 0x060400, 0x8086, 0x0000, 0x04)
_PEX9781 = PciId(0x10B5, 0x9781, 0x060400, 0x10B5, 0x9781, 0xB0)
_PEX9797 = PciId(0x10B5, 0x9797, 0x060400, 0x10B5, 0x9797, 0xB0)
_PEX8725 = PciId(0x10B5, 0x8725, 0x060400, 0x10B5, 0x8725, 0xCA)
_WIDE, _BOARD, _NARROW = LinkState(3, 16), LinkState(3, 4), LinkState(2, 2)
_SLOTS = (2, 3, 4, 10, 11, 12)
"""Downstream ports of a baseboard's switch with an NVSwitch; the bus behind port N is N - 1 after the switch's own."""
_BASEBOARDS = (0x60, 0xC0)
_NVSWITCHES = tuple(tuple(f"0000:{bus + slot - 1:02x}:00.0" for slot in _SLOTS) for bus in _BASEBOARDS)


def _pair(bus: int, first: int, baseboard: int) -> Function:
    """A switch with its upstream port on `bus`, and a GPU on each of two downstream ports."""
    gpus = (
        gpu(
            f"0000:{bus + 2 + 2 * half:02x}:00.0",
            V100_SXM3,
            first + half,
            machine=NAME,
            nvlinks=_NVSWITCHES[baseboard],
        )
        for half in range(2)
    )
    ports = (
        port(f"0000:{bus + 1:02x}:{16 * half:02x}.0", one, id=_PEX9781, link=_WIDE) for half, one in enumerate(gpus)
    )
    return port(f"0000:{bus:02x}:00.0", *ports, id=_PEX9781, link=_WIDE)


def _baseboard(number: int) -> Function:
    bus = _BASEBOARDS[number]
    switches = (
        port(
            f"0000:{bus:02x}:{slot:02x}.0",
            first_nvswitch(address, 6 * number + which),
            id=_PEX8725,
            link=_NARROW,
        )
        for which, (slot, address) in enumerate(zip(_SLOTS, _NVSWITCHES[number], strict=True))
    )
    return port(f"0000:{bus - 1:02x}:00.0", *switches, id=_PEX8725, link=_BOARD)


def _tree(bus: int, first: int, numa_node: int, *, id: PciId = _PEX9781, baseboard: int | None = None) -> HostBridge:
    """A root with two pairs of GPUs from number `first` on, and perhaps the NVSwitches of a baseboard."""
    board = numa_node
    below = [
        port(f"0000:{bus + 2:02x}:04.0", _pair(bus + 7, first, board), id=id, link=_WIDE),
        port(f"0000:{bus + 2:02x}:0c.0", _pair(bus + 12, first + 2, board), id=id, link=_WIDE),
    ]
    if baseboard is not None:
        below.append(port(f"0000:{bus + 2:02x}:10.0", _baseboard(baseboard), id=id, link=_BOARD))
    upstream = port(f"0000:{bus + 1:02x}:00.0", *below, id=id, link=_WIDE)
    return HostBridge(f"pci0000:{bus:02x}", numa_node, (port(f"0000:{bus:02x}:00.0", upstream, id=_PORT, link=_WIDE),))


def machine() -> Machine:
    """The machine."""
    return Machine(
        name=NAME,
        description="16 x V100 32GB SXM3, 12 NVSwitch, 2 sockets; network adapters and drives left out",
        source="recording: open-mpi/hwloc tests/hwloc/xml/nvidiaDGX2.xml (BSD-3-Clause); CPUs and memory: assumed",
        nodes=(NumaNode("0-23,48-71", 768 * _GIB, (10, 21)), NumaNode("24-47,72-95", 768 * _GIB, (21, 10))),
        bridges=(
            _tree(0x2B, 0, 0),
            _tree(0x4E, 4, 0, baseboard=0),
            _tree(0xAE, 8, 1, id=_PEX9797, baseboard=1),
            _tree(0xD7, 12, 1),
        ),
        nvidia=NvidiaDriver("535.216.03", 12020, open_kernel_modules=False),
    )
