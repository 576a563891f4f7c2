"""A cloud machine with a T4: all functions on one bus, no bridges, no IOMMU, and no NUMA node from the firmware."""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.models import T4
from dra_simulate.parts.network import virtio
from dra_simulate.parts.nvidia import gpu

NAME = "vm-1gpu"
_GIB = 1 << 30


def machine() -> Machine:
    """The machine."""
    intel, qemu = 0x8086, (0x1AF4, 0x1100)
    return Machine(
        name=NAME,
        description="a virtual machine with one T4 and a virtio interface; NUMA node unknown, no links in /dev/char",
        source="ids of QEMU's i440FX machine; figures: NVIDIA T4 data sheet; addresses: assumed",
        nodes=(NumaNode("0-7", 30 * _GIB, (10,)),),
        bridges=(
            HostBridge(
                "pci0000:00",
                -1,
                (
                    Function("0000:00:00.0", PciId(intel, 0x1237, 0x060000, *qemu, 0x02)),
                    Function("0000:00:01.0", PciId(intel, 0x7110, 0x060100, *qemu, 0x03)),
                    Function(
                        "0000:00:03.0", PciId(0x1AF4, 0x1042, 0x018000, 0x1AF4, 0x1100, 0x01), driver="virtio-pci"
                    ),
                    gpu("0000:00:04.0", T4, 0, machine=NAME),
                    virtio("0000:00:05.0", "ens5", 2, machine=NAME),
                ),
            ),
        ),
        iommu=False,
        nvidia=NvidiaDriver("535.216.03", 12020, open_kernel_modules=False, has_links=False),
    )
