"""An Azure ND H100 v5: each GPU and each InfiniBand function has its own VMBus channel and PCI domain.

The guest does not see the switches of the host: GPU and adapter of a pair have different roots.
"""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import H100_SXM
from dra_simulate.parts.network import connectx7_vf
from dra_simulate.parts.nvidia import ONE_HOST_FABRIC, gpu

NAME = "azure-ndv5"
_GIB = 1 << 30
_GPU_DOMAINS = (0x1, 0x2, 0x3, 0x8, 0x9, 0xA, 0xB, 0xC)
_VMBUS = "LNXSYSTM:00/LNXSYBUS:00/PNP0A03:00/device:07/VMBUS:01"


def _channel(domain: int, numa_node: int, function: Function) -> HostBridge:
    """A virtual PCI bus; the name of the channel is the device's GUID."""
    guid = f"47505500-{domain:04x}-0000-3130-444531454238"
    return HostBridge(f"pci{domain:04x}:00", numa_node, (function,), parent=f"{_VMBUS}/{guid}")


def machine() -> Machine:
    """The machine."""
    link = LinkState(5, 16)
    bridges = []
    for which, domain in enumerate(_GPU_DOMAINS):
        node = which // 4
        accelerator = gpu(f"{domain:04x}:00:00.0", H100_SXM, which, machine=NAME, fabric=ONE_HOST_FABRIC, link=link)
        other = 0x101 + which
        adapter = connectx7_vf(f"{other:04x}:00:00.0", which, f"ib{which}", 10 + which, machine=NAME)
        bridges += [_channel(domain, node, accelerator), _channel(other, node, adapter)]
    return Machine(
        name=NAME,
        description="Azure ND H100 v5: 8 x H100 80GB SXM, 8 ConnectX-7 virtual functions, 2 sockets, no switches",
        source="recording: Azure/azhpc-images topology/ndv5-topo.xml (MIT); VMBus path: a kernel log; memory: assumed",
        nodes=(NumaNode("0-47", 950 * _GIB, (10, 21)), NumaNode("48-95", 950 * _GIB, (21, 10))),
        bridges=tuple(sorted(bridges, key=lambda bridge: bridge.name)),
        iommu=False,
        modules={"mlx5_core": "24.10-1.1.4"},
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
