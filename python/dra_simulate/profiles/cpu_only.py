"""A two-socket server without accelerators: Ethernet and drives only."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.network import broadcom

NAME = "cpu-only"
_GIB = 1 << 30


def machine() -> Machine:
    """The machine."""
    slot = LinkState(3, 8)
    return Machine(
        name=NAME,
        description="2 sockets, 2 x 25 Gbit/s Ethernet, 2 NVMe, no accelerator",
        source="ids: pci.ids; addresses: assumed",
        nodes=(NumaNode("0-15,32-47", 256 * _GIB, (10, 21)), NumaNode("16-31,48-63", 256 * _GIB, (21, 10))),
        bridges=(
            HostBridge(
                "pci0000:3a",
                0,
                (
                    port(
                        "0000:3a:00.0",
                        broadcom("0000:3b:00.0", "eno1np0", 2, machine=NAME),
                        broadcom("0000:3b:00.1", "eno2np1", 3, machine=NAME),
                        link=slot,
                    ),
                ),
            ),
            HostBridge(
                "pci0000:85",
                1,
                (
                    port("0000:85:00.0", nvme("0000:86:00.0", 0, generation=3), link=slot),
                    port("0000:85:02.0", nvme("0000:87:00.0", 1, generation=3), link=slot),
                ),
            ),
        ),
    )
