"""Two Arc Pro B60 under xe; the second is divided into four virtual functions, with a quota of memory each."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.intel import battlemage
from dra_simulate.parts.network import broadcom

NAME = "arc-b60"
_GIB = 1 << 30
_QUOTA = 22 * _GIB // 4


def machine() -> Machine:
    """The machine."""
    gen5 = LinkState(5, 8)
    return Machine(
        name=NAME,
        description="2 x Arc Pro B60 24GB (one with 4 virtual functions), 1 Ethernet port, 1 NVMe, 1 socket",
        source="figures: Intel Arc Pro B60 data sheet; ids: pci.ids; sysfs files: Linux xe; addresses: assumed",
        nodes=(NumaNode("0-15", 128 * _GIB, (10,)),),
        bridges=(
            HostBridge(
                "pci0000:00",
                0,
                (
                    port("0000:00:01.0", battlemage("0000:03:00.0", 0), link=gen5),
                    port("0000:00:03.0", battlemage("0000:05:00.0", 1, virtual=4, quota=_QUOTA), link=gen5),
                    port("0000:00:06.0", nvme("0000:07:00.0", 0), link=LinkState(4, 4)),
                    port("0000:00:07.0", broadcom("0000:08:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
                ),
            ),
        ),
        iommufd=True,
    )
