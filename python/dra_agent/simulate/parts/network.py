"""Network adapters: ConnectX, BlueField, Broadcom, virtio."""

from __future__ import annotations

from dra_agent.simulate.machine import Bar, Function, LinkState, PciId
from dra_agent.simulate.parts.identity import guid, mac
from dra_agent.simulate.roles.network import Interface, RdmaDevice

_MELLANOX = 0x15B3
_INFINIBAND, _ETHERNET = 0x020700, 0x020000
_MIB = 1 << 20


def connectx7(address: str, number: int, name: str, index: int, *, machine: str, ethernet: bool = False) -> Function:
    """A ConnectX-7 of 400 Gbit/s with RDMA device `mlx5_<number>` and interface `name`."""
    node = guid(machine, number)
    if ethernet:
        hardware_address = mac(machine, number)
    else:
        # IPoIB addresses are 20 bytes: queue pair and the port's GID (RFC 4391).
        gid = "fe80000000000000" + node.replace(":", "")
        hardware_address = "00:00:10:29:" + ":".join(gid[byte : byte + 2] for byte in range(0, 32, 2))
    return Function(
        address,
        PciId(_MELLANOX, 0x1021, _ETHERNET if ethernet else _INFINIBAND, _MELLANOX, 0x0041),
        driver="mlx5_core",
        link=LinkState(5, 16),
        bars=(Bar(32 * _MIB, prefetchable=True),),
        roles=(
            Interface(
                name,
                hardware_address,
                index,
                speed=200_000 if ethernet else 400_000,
                mtu=1500 if ethernet else 4092,
                infiniband=not ethernet,
            ),
            RdmaDevice(f"mlx5_{number}", node, number, ethernet=ethernet, speed=200_000 if ethernet else 400_000),
        ),
    )


def broadcom(address: str, name: str, index: int, *, machine: str) -> Function:
    """One port of a BCM57414, 25 Gbit/s Ethernet without RDMA."""
    return Function(
        address,
        PciId(0x14E4, 0x16D7, _ETHERNET, 0x14E4, 0x4146, 0x01),
        driver="bnxt_en",
        link=LinkState(3, 8),
        bars=(Bar(1 * _MIB, prefetchable=True),),
        roles=(Interface(name, mac(machine, 100 + index, "bc:97:e1"), index, speed=25_000),),
    )
