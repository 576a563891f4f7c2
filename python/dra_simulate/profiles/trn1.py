"""An EC2 trn1.32xlarge: 16 Trainium, each with its neighbors of a 2D torus, and 8 EFA on four PCI roots.

The numbers of the Neuron devices follow the torus and not the PCI addresses.
"""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, PciId
from dra_simulate.parts.amazon import TRAINIUM, efa, elastic_block_store, ena, instance_store, neuron
from dra_simulate.parts.bridges import torus

NAME = "trn1"
_GIB = 1 << 30
_ROOTS = (0x10, 0x20, 0x90, 0xA0)
_NEURON = (
    *("10:1c", "10:1d", "a0:1c", "a0:1d"),
    *("20:1b", "20:1c", "90:1b", "90:1c"),
    *("20:1d", "20:1e", "90:1d", "90:1e"),
    *("10:1e", "10:1b", "a0:1e", "a0:1b"),
)
"""Bus and slot by number of the Neuron device, from `neuron-ls`."""


def _root(number: int, bus: int) -> HostBridge:
    def at(slot: int) -> str:
        return f"0000:{bus:02x}:{slot:02x}.0"

    devices = tuple(
        neuron(f"0000:{place}.0", which, TRAINIUM, torus(which))
        for which, place in sorted(enumerate(_NEURON), key=lambda pair: pair[1])
        if int(place[:2], 16) == bus
    )
    functions = (
        ena(at(0), f"ens{bus}", 2 + 2 * number, machine=NAME),
        ena(at(1), f"ens{bus + 1}", 3 + 2 * number, machine=NAME),
        efa(at(0x19), 2 * number, machine=NAME),
        efa(at(0x1A), 2 * number + 1, machine=NAME),
        *devices,
        instance_store(at(0x1F), number),
    )
    return HostBridge(f"pci0000:{bus:02x}", number // 2, functions)


def machine() -> Machine:
    """The machine."""
    chipset: tuple[Function, ...] = (
        Function("0000:00:00.0", PciId(0x8086, 0x1237, 0x060000)),
        Function("0000:00:01.0", PciId(0x8086, 0x7000, 0x060100)),
        Function("0000:00:01.3", PciId(0x8086, 0x7113, 0x068000)),
        # The console of every instance.
        Function("0000:00:03.0", PciId(0x1D0F, 0x1111, 0x030000)),
        elastic_block_store("0000:00:04.0", 10),
        elastic_block_store("0000:00:1f.0", 11),
    )
    return Machine(
        name=NAME,
        description="EC2 trn1.32xlarge: 16 Trainium, 8 EFA, 8 ENA, 6 NVMe, 2 sockets, no switches",
        source="recording: lspci -tv and neuron-ls in the AWS Neuron documentation; NUMA nodes of roots: assumed",
        nodes=(NumaNode("0-31,64-95", 256 * _GIB, (10, 21)), NumaNode("32-63,96-127", 256 * _GIB, (21, 10))),
        bridges=(
            HostBridge("pci0000:00", -1, chipset),
            *(_root(number, bus) for number, bus in enumerate(_ROOTS)),
        ),
        iommu=False,
        modules={"neuron": "2.24.7.0", "efa": "2.17.2g"},
    )
