"""An EC2 p4d.24xlarge: two A100 and an EFA on each of four PCI roots, without the switches of the host."""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.mig_models import A100_40GB
from dra_simulate.parts.amazon import efa, elastic_block_store, ena
from dra_simulate.parts.nvidia import gpu

NAME = "aws-p4d"
_GIB = 1 << 30
_ROOTS = (0x10, 0x20, 0x90, 0xA0)
_LINK = LinkState(3, 16)


def _root(number: int, bus: int) -> HostBridge:
    gpus = (
        gpu(f"0000:{bus:02x}:{slot:02x}.0", A100_40GB, 2 * number + half, machine=NAME, link=_LINK)
        for half, slot in enumerate((0x1C, 0x1D))
    )
    adapter = efa(f"0000:{bus:02x}:1b.0", number, machine=NAME, device=0xEFA0)
    return HostBridge(f"pci0000:{bus:02x}", number // 2, (adapter, *gpus))


def machine() -> Machine:
    """The machine."""
    chipset = (
        Function("0000:00:00.0", PciId(0x8086, 0x1237, 0x060000)),
        Function("0000:00:03.0", PciId(0x1D0F, 0x1111, 0x030000)),
        elastic_block_store("0000:00:04.0", 0),
        ena("0000:00:05.0", "ens5", 2, machine=NAME),
    )
    return Machine(
        name=NAME,
        description="EC2 p4d.24xlarge: 8 x A100 40GB SXM, 4 EFA, 1 ENA, 2 sockets, no switches",
        source="recording: aws/aws-ofi-nccl topology/p4d-24xl-topo.xml (Apache-2.0); first bus, memory: assumed",
        nodes=(NumaNode("0-23,48-71", 576 * _GIB, (10, 21)), NumaNode("24-47,72-95", 576 * _GIB, (21, 10))),
        bridges=(HostBridge("pci0000:00", 0, chipset), *(_root(number, bus) for number, bus in enumerate(_ROOTS))),
        iommu=False,
        modules={"efa": "2.17.2g"},
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
