"""Four Flex 170 cards under i915; the third has four virtual functions, one of them bound to VFIO."""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.intel import flex170
from dra_simulate.parts.network import connectx6dx

NAME = "flex170"
_GIB = 1 << 30
_GEN4 = LinkState(4, 16)


def _card(bus: int, numa_node: int, card: Function) -> HostBridge:
    return HostBridge(f"pci0000:{bus:02x}", numa_node, (port(f"0000:{bus:02x}:02.0", card, link=_GEN4),))


def machine() -> Machine:
    """The machine."""
    return Machine(
        name=NAME,
        description="4 x Flex 170 16GB (one with 4 virtual functions), 2 ConnectX-6 Dx, 1 NVMe, 2 sockets",
        source="figures: Intel Flex 170 data sheet; ids: pci.ids; sysfs files: Linux i915; addresses: assumed",
        nodes=(NumaNode("0-31,64-95", 512 * _GIB, (10, 21)), NumaNode("32-63,96-127", 512 * _GIB, (21, 10))),
        bridges=(
            _card(0x16, 0, flex170(0x17, 0)),
            _card(0x30, 0, flex170(0x31, 1)),
            HostBridge(
                "pci0000:4a",
                0,
                (
                    port("0000:4a:02.0", connectx6dx("0000:4b:00.0", 0, "ens1np0", 2, machine=NAME), link=_GEN4),
                    port("0000:4a:04.0", nvme("0000:4c:00.0", 0), link=LinkState(4, 4)),
                ),
            ),
            _card(0x97, 1, flex170(0x98, 2, virtual=4)),
            _card(0xB0, 1, flex170(0xB1, 6)),
            HostBridge(
                "pci0000:ca",
                1,
                (port("0000:ca:02.0", connectx6dx("0000:cb:00.0", 1, "ens2np0", 3, machine=NAME), link=_GEN4),),
            ),
        ),
    )
