"""An EC2 trn2n.48xlarge: 16 Trainium2 in a 2D torus; two of them and two EFA share a root."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, Machine, NumaNode
from dra_simulate.parts.amazon import TRAINIUM2, efa, ena, neuron
from dra_simulate.parts.bridges import AMD_PORT, port, torus

NAME = "trn2"
_TIB = 1 << 40
_BUSES = (0xCC, 0xB5, 0xB6, 0xCB, 0x6F, 0x58, 0x59, 0x6E, 0x9B, 0x84, 0x85, 0x9A, 0xF8, 0xE1, 0xE2, 0xF7)
"""Bus by number of the Neuron device."""
_NODE_0 = frozenset({0x58, 0x59, 0x6E, 0x6F, 0x84, 0x85, 0x9A, 0x9B})


def _root(number: int, first: int) -> HostBridge:
    """The root of two neighboring buses, with an EFA next to each device."""
    ports = []
    for which, bus in enumerate((first, first + 1)):
        device = _BUSES.index(bus)
        ports += [
            port(
                f"0000:{first - 2:02x}:{which + 1:02x}.1",
                neuron(f"0000:{bus:02x}:00.0", device, TRAINIUM2, torus(device)),
                id=AMD_PORT,
            ),
            port(
                f"0000:{first - 2:02x}:{which + 3:02x}.1",
                efa(f"0000:{first + 2 + which:02x}:00.0", 2 * number + which, machine=NAME, device=0xEFA2),
                id=AMD_PORT,
            ),
        ]
    return HostBridge(f"pci0000:{first - 2:02x}", 0 if first in _NODE_0 else 1, tuple(ports))


def machine() -> Machine:
    """The machine."""
    firsts = sorted(bus for bus in _BUSES if bus + 1 in _BUSES)
    front = HostBridge(
        "pci0000:20", 0, (port("0000:20:01.1", ena("0000:21:00.0", "ens33", 2, machine=NAME), id=AMD_PORT),)
    )
    return Machine(
        name=NAME,
        description="EC2 trn2n.48xlarge: 16 Trainium2 96GB, 16 EFA, 1 ENA, 2 sockets",
        source="addresses, NUMA nodes, links: neuron-ls in the AWS Neuron documentation; ports, EFA buses: assumed",
        nodes=(NumaNode("0-47,96-143", _TIB, (10, 32)), NumaNode("48-95,144-191", _TIB, (32, 10))),
        bridges=(front, *(_root(number, first) for number, first in enumerate(firsts))),
        iommu=False,
        modules={"neuron": "2.24.7.0", "efa": "2.17.2g"},
    )
