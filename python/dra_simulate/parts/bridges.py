"""Root ports, PCIe switches and NVMe drives: the parts that every server has."""

from __future__ import annotations

import hashlib
import uuid as uuids

from dra_simulate.machine import Bar, Function, LinkState, PciId
from dra_simulate.roles.nvme import NvmeController

_BRIDGE = 0x060400
KIB, MIB = 1 << 10, 1 << 20

INTEL_PORT = PciId(0x8086, 0x352A, _BRIDGE, 0x8086, 0x0000, 0x04)
"""PCI Express root port of a 4th-generation Xeon."""
AMD_PORT = PciId(0x1022, 0x14AB, _BRIDGE, 0x1022, 0x14AB, 0x01)
"""PCI Express GPP bridge of an EPYC of the Genoa family."""
BROADCOM_SWITCH = PciId(0x1000, 0xC030, _BRIDGE, 0x1000, 0x100B, 0xB0)
"""PEX89xxx, PCIe generation 5."""
MELLANOX_SWITCH = PciId(0x15B3, 0x1979, _BRIDGE)
"""The switch in an adapter or board of NVIDIA's networking, PCIe generation 5."""
PLX_SWITCH = PciId(0x10B5, 0x8749, _BRIDGE, 0x10B5, 0x8749, 0xCA)


def port(
    address: str, *children: Function, id: PciId = INTEL_PORT, link: LinkState | None = None, bus: int | None = None
) -> Function:
    """A bridge: a root port, or one port of a switch. `bus` is the secondary bus of a port with nothing behind it."""
    return Function(
        address,
        id,
        driver="pcieport",
        link=link or LinkState(5, 16),
        children=children,
        buses=None if bus is None else (bus, bus),
    )


def switch(
    bus: int, *slots: Function | None, id: PciId = BROADCOM_SWITCH, link: LinkState | None = None, domain: int = 0
) -> Function:
    """A switch with its upstream port on `bus`; each slot is the function below one downstream port, None if empty.

    The downstream ports are on the next bus, and the function below port N on the bus N after that, as firmware numbers
    them if every port leads to a single device.
    """
    inner = bus + 1
    ports = []
    for number, function in enumerate(slots):
        address = f"{domain:04x}:{inner:02x}:{number:02x}.0"
        ports.append(
            port(address, id=id, link=LinkState(1, 0, 5, 16), bus=inner + 1 + number)
            if function is None
            else port(address, function, id=id, link=function.link)
        )
    return port(f"{domain:04x}:{bus:02x}:00.0", *ports, id=id, link=link)


def nvme(address: str, number: int, *, generation: int = 4) -> Function:
    """A data-centre NVMe drive."""
    return Function(
        address,
        PciId(0x144D, 0xA824, 0x010802, 0x144D, 0xA801),
        driver="nvme",
        link=LinkState(generation, 4),
        bars=(Bar(32 * KIB),),
        roles=(NvmeController(number, "SAMSUNG MZWLR3T8HBLS-00007", f"S6EWNE0R{number:06d}"),),
    )


_NAMESPACE = uuids.UUID("6b2f1c0e-5d43-5f0a-9c1e-0d7a4e8f2b11")


def uuid(machine: str, kind: str, number: int) -> str:
    """A UUID."""
    return str(uuids.uuid5(_NAMESPACE, f"{machine}/{kind}/{number}"))


def serial_number(machine: str, number: int) -> str:
    """Thirteen digits, as NVIDIA's boards have."""
    return f"165{_digest(machine, 'serial', number) % 10**10:010d}"


def guid(machine: str, number: int) -> str:
    """A node GUID of an RDMA device as sysfs prints it, with Mellanox' prefix."""
    low = _digest(machine, "guid", number) & 0xFFFFFFFF
    return f"a088:c203:{low >> 16:04x}:{low & 0xFFFF:04x}"


def mac(machine: str, number: int, prefix: str = "a0:88:c2") -> str:
    """An Ethernet address."""
    low = _digest(machine, "mac", number) & 0xFFFFFF
    return f"{prefix}:{low >> 16:02x}:{low >> 8 & 0xFF:02x}:{low & 0xFF:02x}"


def _digest(machine: str, kind: str, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{machine}/{kind}/{number}".encode()).digest()[:8])


def number(machine: str, kind: str, which: int) -> int:
    """A 64-bit number that is never 0."""
    return _digest(machine, kind, which) | 1


def torus(number: int) -> tuple[int, ...]:
    """The four neighbors of a device in a torus of four by four, numbered by row."""
    row, column = divmod(number, 4)
    return (
        (row - 1) % 4 * 4 + column,
        row * 4 + (column - 1) % 4,
        (row + 1) % 4 * 4 + column,
        row * 4 + (column + 1) % 4,
    )
