"""A virtual machine with eight virtual functions of MI300X, each in its own PCI domain.

Source: files of a virtual function: kernel source (amdgpu_gfx.c, aqua_vanjaram.c); PCI id: amdgpu.ids of libdrm.
Assumed: addresses, one render node for each function, memory.
"""

from __future__ import annotations

from dra_simulate.machine import HostBridge, Machine, NumaNode
from dra_simulate.parts.amd import mi300x_vf
from dra_simulate.parts.network import virtio

NAME = "mi300x-vf"
_GIB = 1 << 30
_FIRST_DOMAIN = 2


def _root(number: int) -> HostBridge:
    domain = _FIRST_DOMAIN + number
    gpu = mi300x_vf(f"{domain:04x}:00:00.0", number, machine=NAME)
    return HostBridge(f"pci{domain:04x}:00", 0 if number < 4 else 1, (gpu,))


def machine() -> Machine:
    """The machine."""
    return Machine(
        name=NAME,
        description="a virtual machine with 8 virtual functions of MI300X and a virtio interface",
        source="files of a virtual function: amdgpu (amdgpu_gfx.c, aqua_vanjaram.c); addresses and memory: assumed",
        nodes=(NumaNode("0-47", 920 * _GIB, (10, 21)), NumaNode("48-95", 920 * _GIB, (21, 10))),
        bridges=(
            HostBridge("pci0000:00", 0, (virtio("0000:00:05.0", "ens5", 2, machine=NAME),)),
            *(_root(number) for number in range(8)),
        ),
        iommu=False,
        modules={"amdgpu": "6.12.12"},
    )
