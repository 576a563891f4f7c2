"""A server with two Alveo V80, a BlueField-4 and a ConnectX-8; its PCIe generation 6 ends at the adapters."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.accelerators import alveo_v80
from dra_simulate.parts.bridges import AMD_PORT, nvme, port
from dra_simulate.parts.network import bluefield4, connectx8

NAME = "alveo-v80"
_GIB = 1 << 30
_GEN5, _GEN6 = LinkState(5, 8), LinkState(6, 16)


def machine() -> Machine:
    """The machine."""
    first, second = alveo_v80("0000:41:00", 0, (120, 121)), alveo_v80("0000:81:00", 1, (122, 123))
    addresses = tuple(tuple(function.address for function in card) for card in (first, second))
    return Machine(
        name=NAME,
        description="2 x Alveo V80, BlueField-4 (2 ports), ConnectX-8 InfiniBand, 1 NVMe, 2 sockets",
        source="ids: pci.ids; functions and nodes: Xilinx/SLASH (MIT) and Xilinx/AVED; addresses, figures: assumed",
        nodes=(NumaNode("0-63,128-191", 512 * _GIB, (10, 32)), NumaNode("64-127,192-255", 512 * _GIB, (32, 10))),
        bridges=(
            HostBridge(
                "pci0000:00", 0, (port("0000:00:01.1", nvme("0000:01:00.0", 0), id=AMD_PORT, link=LinkState(4, 4)),)
            ),
            HostBridge("pci0000:40", 0, (port("0000:40:01.1", *first, id=AMD_PORT, link=_GEN5),)),
            HostBridge(
                "pci0000:60",
                0,
                (port("0000:60:01.1", *bluefield4("0000:61:00", 0, 4, machine=NAME), id=AMD_PORT, link=_GEN6),),
            ),
            HostBridge("pci0000:80", 1, (port("0000:80:01.1", *second, id=AMD_PORT, link=_GEN5),)),
            HostBridge(
                "pci0000:a0",
                1,
                (
                    port(
                        "0000:a0:01.1",
                        connectx8("0000:a1:00.0", 2, "ibp161s0", 8, machine=NAME),
                        id=AMD_PORT,
                        link=_GEN6,
                    ),
                ),
            ),
        ),
        # The functions of a card have no ACS between them.
        together=addresses,
        modules={"mlx5_core": "26.04-0.8.5"},
    )
