"""A DGX Spark: one GB10, a GPU without dedicated memory, in PCI domain 000f of an Arm machine."""

from __future__ import annotations

from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.models import GB10
from dra_simulate.parts.bridges import port
from dra_simulate.parts.nvidia import gpu

NAME = "dgx-spark"
_KIB = 1 << 10


def machine() -> Machine:
    """The machine."""
    bridge = PciId(0x10DE, 0x22D1, 0x060400)
    return Machine(
        name=NAME,
        description="a DGX Spark: one GB10, which uses the memory of the CPU; its other devices are left out",
        source="memory and driver: XuehaiPan/nvitop#208; addresses and ids: lspci of a DGX Spark; CUDA cores: NVIDIA's"
        " data sheet; engines, subsystem and link: assumed",
        nodes=(NumaNode("0-19", 127_600_748 * _KIB, (10,)),),
        bridges=(
            HostBridge("pci000f:00", 0, (port("000f:00:00.0", gpu("000f:01:00.0", GB10, 0, machine=NAME), id=bridge),)),
        ),
        nvidia=NvidiaDriver("580.173.02", 13000),
    )
