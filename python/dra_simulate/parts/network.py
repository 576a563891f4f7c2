"""Network adapters: ConnectX, also with two ports on one function, BlueField, Broadcom, virtio."""

from __future__ import annotations

from dra_simulate.machine import Bar, Function, LinkState, PciId, Sriov
from dra_simulate.parts.bridges import guid, mac
from dra_simulate.roles.network import Interface, RdmaDevice, port_guid

_MELLANOX = 0x15B3
_INFINIBAND, _ETHERNET = 0x020700, 0x020000
_MIB = 1 << 20


def connectx7(address: str, number: int, name: str, index: int, *, machine: str, ethernet: bool = False) -> Function:
    """A ConnectX-7 of 400 Gbit/s with RDMA device `mlx5_<number>` and interface `name`."""
    speed = 200_000 if ethernet else 400_000
    return _connectx(address, 0x1021, number, name, index, machine, ethernet, speed, LinkState(5, 16))


def connectx8(address: str, number: int, name: str, index: int, *, machine: str, ethernet: bool = False) -> Function:
    """A ConnectX-8 of 800 Gbit/s (400 with Ethernet) on PCIe generation 6."""
    speed = 400_000 if ethernet else 800_000
    return _connectx(address, 0x1023, number, name, index, machine, ethernet, speed, LinkState(6, 16))


def connectx7_vf(address: str, number: int, name: str, index: int, *, machine: str) -> Function:
    """A virtual function of a ConnectX-7 with InfiniBand, alone in a virtual machine."""
    return _connectx(address, 0x101E, number, name, index, machine, False, 400_000, LinkState(5, 16))


def _connectx(
    address: str,
    device: int,
    number: int,
    name: str,
    index: int,
    machine: str,
    ethernet: bool,
    speed: int,
    link: LinkState,
) -> Function:
    node = guid(machine, number)
    hardware_address = mac(machine, number) if ethernet else _ipoib("00:00:10:29", node)
    return Function(
        address,
        PciId(_MELLANOX, device, _ETHERNET if ethernet else _INFINIBAND, _MELLANOX, 0x0041),
        driver="mlx5_core",
        link=link,
        bars=(Bar(32 * _MIB, prefetchable=True),),
        roles=(
            Interface(
                name, hardware_address, index, speed=speed, mtu=1500 if ethernet else 4092, infiniband=not ethernet
            ),
            # mlx5 names the type after the PCI device id: 0x1021 is 4129.
            RdmaDevice(f"mlx5_{number}", node, number, ethernet=ethernet, speed=speed, hca_type=f"MT{device}"),
        ),
    )


def connectx3(
    address: str, number: int, names: tuple[str, ...], index: int, *, machine: str, ethernet: bool = True
) -> Function:
    """A ConnectX-3 Pro with a port for each name on one function; only the last one has a cable.

    The interfaces of Ethernet are switched on; of IPoIB only the last one is.
    """
    ports, speed = len(names), 40_000 if ethernet else 56_000
    node = guid(machine, number)
    interfaces = []
    for which, name in enumerate(names):
        is_last = which == ports - 1
        hardware = (
            mac(machine, 8 * number + which) if ethernet else _ipoib(f"00:02:{which:02x}:08", port_guid(node, which))
        )
        interfaces.append(
            Interface(
                name,
                hardware,
                index + which,
                speed=speed,
                up=ethernet or is_last,
                infiniband=not ethernet,
                dev_port=which,
                cable=is_last,
            )
        )
    return Function(
        address,
        PciId(_MELLANOX, 0x1007, _ETHERNET if ethernet else _INFINIBAND, _MELLANOX, 0x0022),
        driver="mlx4_core",
        link=LinkState(3, 8),
        bars=(Bar(8 * _MIB, prefetchable=True),),
        roles=(
            *interfaces,
            RdmaDevice(
                f"mlx4_{number}",
                node,
                number,
                ethernet=ethernet,
                speed=speed,
                hca_type="MT4103",
                board="MT_1090111023",
                firmware="2.42.5000",
                ports=ports,
                without_cable=frozenset(range(1, ports)),
            ),
        ),
    )


def _ipoib(queue_pair: str, guid: str) -> str:
    """An IPoIB address, 20 bytes: queue pair and the port's GID (RFC 4391)."""
    gid = "fe80000000000000" + guid.replace(":", "")
    return f"{queue_pair}:" + ":".join(gid[byte : byte + 2] for byte in range(0, 32, 2))


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


def connectx6dx(
    address: str,
    number: int,
    name: str,
    index: int,
    *,
    machine: str,
    total: int = 8,
    virtual: int = 0,
    speed: int = 100_000,
) -> Function:
    """A ConnectX-6 Dx of 100 Gbit/s Ethernet; virtual functions follow on the same bus, with names `<name>v<n>`."""
    slot = address.rpartition(".")[0]
    functions = tuple(
        Function(
            f"{slot}.{which + 1}",
            PciId(_MELLANOX, 0x101E, _ETHERNET, _MELLANOX, 0x0040),
            driver="mlx5_core",
            link=LinkState(4, 16),
            roles=_ethernet(number + 1 + which, f"{name}v{which}", index + 1 + which, machine, speed, "MT4126"),
        )
        for which in range(virtual)
    )
    return Function(
        address,
        PciId(_MELLANOX, 0x101D, _ETHERNET, _MELLANOX, 0x0040),
        driver="mlx5_core",
        link=LinkState(4, 16),
        bars=(Bar(32 * _MIB, prefetchable=True),),
        roles=_ethernet(number, name, index, machine, speed, "MT4125"),
        sriov=Sriov(total, 0x101E, functions=functions),
    )


def bluefield3(slot: str, number: int, index: int, *, machine: str) -> tuple[Function, ...]:
    """A BlueField-3 SmartNIC in slot "0000:ca:00": two ports of 200 Gbit/s with RDMA, and its management function."""
    return _bluefield(slot, (0xA2DC, 0xC2D5), number, index, machine, 200_000, LinkState(5, 16))


def bluefield4(slot: str, number: int, index: int, *, machine: str) -> tuple[Function, ...]:
    """A BlueField-4 SmartNIC: two ports of 400 Gbit/s with RDMA, and its management function (ids: pci.ids)."""
    return _bluefield(slot, (0xA2DF, 0xC2D6), number, index, machine, 400_000, LinkState(6, 16))


def _bluefield(
    slot: str, devices: tuple[int, int], number: int, index: int, machine: str, speed: int, link: LinkState
) -> tuple[Function, ...]:
    board = (_MELLANOX, 0x0009, 0x01)
    port, management = devices
    ports = tuple(
        Function(
            f"{slot}.{which}",
            PciId(_MELLANOX, port, _ETHERNET, *board),
            driver="mlx5_core",
            link=link,
            bars=(Bar(32 * _MIB, prefetchable=True),),
            roles=_ethernet(number + which, f"enp{index}f{which}np{which}", index + which, machine, speed, f"MT{port}"),
            sriov=Sriov(16, 0x101E),
        )
        for which in range(2)
    )
    return (*ports, Function(f"{slot}.2", PciId(_MELLANOX, management, 0x080100, *board), link=link))


def virtio(address: str, name: str, index: int, *, machine: str) -> Function:
    """A virtual machine's interface: it hangs on a virtio device below the PCI function."""
    return Function(
        address,
        PciId(0x1AF4, 0x1041, _ETHERNET, 0x1AF4, 0x1100, 0x01),
        driver="virtio-pci",
        bars=(Bar(16 << 10, prefetchable=True),),
        roles=(Interface(name, mac(machine, index, "42:01:0a"), index, speed=-1, mtu=1460, bus_device="virtio1"),),
    )


def _ethernet(
    number: int, name: str, index: int, machine: str, speed: int, hca_type: str
) -> tuple[Interface, RdmaDevice]:
    return (
        Interface(name, mac(machine, number), index, speed=speed),
        RdmaDevice(f"mlx5_{number}", guid(machine, number), number, ethernet=True, speed=speed, hca_type=hca_type),
    )
