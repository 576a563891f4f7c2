"""A server with two ConnectX-3 Pro, each with two ports on one PCI function, of which the second has a cable.

Sources: one function with two ports: cisco-system-traffic-generator/trex-core#48, canonical/lxd#3983; `dev_port` and
names: kernel, mlx4_en and IPoIB; ids: pci.ids. Assumed: addresses.
"""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.network import broadcom, connectx3

NAME = "connectx-3"
_GIB = 1 << 30


def machine() -> Machine:
    """The machine."""
    gen3 = LinkState(3, 8)
    return Machine(
        name=NAME,
        description="2 x ConnectX-3 Pro with two ports on a function (Ethernet and InfiniBand; the first port of each"
        " has no cable), 1 Ethernet port, 1 NVMe, 1 socket",
        source="ports: reports of such hosts (trex-core#48, lxd#3983); files: Linux, mlx4 and IPoIB; ids: pci.ids;"
        " addresses: assumed",
        nodes=(NumaNode("0-15", 64 * _GIB, (10,)),),
        bridges=(
            HostBridge(
                "pci0000:00",
                0,
                (
                    port("0000:00:01.0", connectx3("0000:01:00.0", 0, ("ens1", "ens1d1"), 2, machine=NAME), link=gen3),
                    port(
                        "0000:00:02.0",
                        connectx3("0000:02:00.0", 1, ("ib0", "ib1"), 4, machine=NAME, ethernet=False),
                        link=gen3,
                    ),
                    port("0000:00:03.0", nvme("0000:03:00.0", 0, generation=3), link=LinkState(3, 4)),
                    port("0000:00:04.0", broadcom("0000:04:00.0", "eno1np0", 6, machine=NAME), link=gen3),
                ),
            ),
        ),
    )
