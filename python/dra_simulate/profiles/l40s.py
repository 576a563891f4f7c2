"""Four L40S each on its own root port, without NVLink; an adapter with virtual functions shares a root with a GPU."""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import L40S
from dra_simulate.parts.bridges import AMD_PORT, nvme, port
from dra_simulate.parts.network import connectx6dx
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.drm import DrmNodes

NAME = "l40s"
_GIB = 1 << 30
_GEN4 = LinkState(4, 16)


def _gpu(bus: int, minor: int) -> Function:
    # Without a graphics session nvidia-drm is still loaded and makes DRM nodes.
    plain = gpu(f"0000:{bus:02x}:00.0", L40S, minor, machine=NAME)
    return replace(plain, roles=(*plain.roles, DrmNodes(minor, 128 + minor)))


def _root(bus: int, numa_node: int, *functions: Function) -> HostBridge:
    ports = tuple(
        port(f"0000:{bus:02x}:{2 * which + 1:02x}.1", function, id=AMD_PORT, link=_GEN4)
        for which, function in enumerate(functions)
    )
    return HostBridge(f"pci0000:{bus:02x}", numa_node, ports)


def machine() -> Machine:
    """The machine."""
    return Machine(
        name=NAME,
        description="4 x L40S 48GB, 2 ConnectX-6 Dx Ethernet (one with 4 virtual functions), 2 NVMe, 2 sockets",
        source="figures: NVIDIA L40S data sheet; ids: pci.ids; addresses: assumed",
        nodes=(NumaNode("0-31,64-95", 384 * _GIB, (10, 32)), NumaNode("32-63,96-127", 384 * _GIB, (32, 10))),
        bridges=(
            _root(0x00, 0, _gpu(0x01, 0), nvme("0000:02:00.0", 0)),
            _root(0x40, 0, _gpu(0x41, 1), connectx6dx("0000:42:00.0", 0, "ens3np0", 2, machine=NAME, virtual=4)),
            _root(0x80, 1, _gpu(0x81, 2), nvme("0000:82:00.0", 1)),
            _root(0xC0, 1, _gpu(0xC1, 3), connectx6dx("0000:c2:00.0", 5, "ens4np0", 7, machine=NAME)),
        ),
        modules={"mlx5_core": "24.10-1.1.4"},
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
