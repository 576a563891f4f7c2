"""A workstation with Arc Pro boards: two B70 and a B65 whole, and a B50 divided into two virtual functions."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.intel import ARC_PRO_B50, ARC_PRO_B65, ARC_PRO_B70, battlemage
from dra_simulate.parts.network import broadcom

NAME = "arc-pro"
_GIB, _MIB = 1 << 30, 1 << 20
_QUOTA = 7048 * _MIB
"""Of two functions on a board of 16 GiB, as xe provisions them (kernel commit 95c1cfa30608)."""


def machine() -> Machine:
    """The machine."""
    wide, narrow = LinkState(5, 16), LinkState(5, 8)
    return Machine(
        name=NAME,
        description="2 x Arc Pro B70 32GB, Arc Pro B65 32GB, Arc Pro B50 16GB (2 virtual functions), 1 Ethernet port",
        source="ids: pci.ids; memory of the B70 and quotas: logs of xe; sysfs files: Linux xe; addresses: assumed",
        nodes=(NumaNode("0-63", 256 * _GIB, (10,)),),
        bridges=(
            HostBridge(
                "pci0000:00",
                0,
                (
                    port("0000:00:01.0", battlemage("0000:03:00.0", 0, board=ARC_PRO_B70), link=wide),
                    port("0000:00:02.0", battlemage("0000:06:00.0", 1, board=ARC_PRO_B70), link=wide),
                    port("0000:00:03.0", battlemage("0000:09:00.0", 2, board=ARC_PRO_B65), link=wide),
                    port(
                        "0000:00:04.0",
                        battlemage("0000:0c:00.0", 3, board=ARC_PRO_B50, virtual=2, quota=_QUOTA),
                        link=narrow,
                    ),
                    port("0000:00:06.0", nvme("0000:0e:00.0", 0), link=LinkState(4, 4)),
                    port("0000:00:07.0", broadcom("0000:0f:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
                ),
            ),
        ),
        iommufd=True,
    )
