"""Properties of a network interface that a container with its namespace can change, and a move does not reset."""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgspec

from dra_agent.device_setup.netlink_request import ROUTE, Connection, attribute, attributes

ETHERNET_CHARACTERS = len("02:fc:00:00:00:01")
FLAGS = 0x80 | 0x100 | 0x200 | 0x1000
"""IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI and IFF_MULTICAST (linux/if.h): configured flags, without reported ones."""
NUMBERS = {
    "IFLA_TXQLEN": "txqlen",
    "IFLA_GROUP": "group",
    "IFLA_GSO_MAX_SIZE": "gso_max_size",
    "IFLA_GSO_MAX_SEGS": "gso_max_segs",
    "IFLA_GRO_MAX_SIZE": "gro_max_size",
    "IFLA_LINKMODE": "linkmode",
}
"""Link attributes that can be changed with CAP_NET_ADMIN in its namespace, by their names in the kernel and pyroute2.
"""
_NEWER_NUMBERS = {"IFLA_GSO_IPV4_MAX_SIZE": 63, "IFLA_GRO_IPV4_MAX_SIZE": 64}
"""The same, but pyroute2 does not know them (Linux 6.3)."""
_RTM_GETLINK, _RTM_SETLINK = 18, 19
_IFLA_OPERSTATE = 16
_IF_OPER_UP = b"\x06"
_LINK_HEADER = struct.Struct("=BxHiII")
_XDP_MODES = {"IFLA_XDP_SKB_PROG_ID": 1 << 1, "IFLA_XDP_DRV_PROG_ID": 1 << 2, "IFLA_XDP_HW_PROG_ID": 1 << 3}
"""With the flag of the mode (XDP_FLAGS_SKB_MODE and others, linux/if_link.h)."""
_BYTES = "\0"
"""Starts the text of a name that is not UTF-8. Names end at this character, so no other text has it."""


class NotRestorableError(Exception):
    """The interface has something that cannot be restored after a move: a clause that starts with "it"."""


class TooManyError(NotRestorableError):
    """The interface has more of something than its record can have."""

    def __init__(self, count: int, what: str, limit: int) -> None:
        super().__init__(f"it has {count:,} {what}, and at most {limit:,} can be restored after a move")


class Master(msgspec.Struct, frozen=True):
    """The bond, bridge or VRF that an interface is a port of."""

    index: int
    """0: none."""
    name: str = ""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """The properties before a move."""

    hardware_address: str
    flags: int | None = None
    """None, here and below: unknown, and not changed."""
    numbers: dict[str, int] = {}
    """By attribute ("IFLA_TXQLEN")."""
    alias: str | None = None
    altnames: tuple[str, ...] | None = None
    xdp: tuple[int, ...] = ()
    """IDs of the programs that the host has attached."""
    tcx: tuple[int, ...] | None = ()
    """The same for tcx; None without the permission to list them, so none is removed."""
    master: Master | None = None
    ethtool: dict[str, dict[int, bytes]] | None = None
    """See dra_agent.device_setup.ethtool."""
    steering: dict[int, str] | None = None
    """See dra_agent.device_setup.steering; None if the driver has no such rules."""
    files: dict[str, str] = {}
    sysctls: dict[str, str] = {}
    """See dra_agent.device_setup.link_files."""
    addresses: tuple[bytes, ...] | None = None
    routes: tuple[bytes, ...] = ()
    """See dra_agent.device_setup.link_addresses; None if an earlier agent recorded the addresses as text only."""
    boot_id: str = ""
    """Where an earlier agent recorded the boot; see `OriginalInterface.boot`."""


def text(name: str | bytes | None) -> str:
    """Return a name as text that JSON can represent; names are bytes, and pyroute2 decodes only UTF-8."""
    if isinstance(name, bytes):
        return _BYTES + name.hex()
    return name or ""


def raw(name: str) -> bytes:
    """Return the bytes of a name from `text`."""
    return bytes.fromhex(name.removeprefix(_BYTES)) if name.startswith(_BYTES) else name.encode()


def shown(name: str) -> str:
    """Return a name from `text` for a message."""
    return repr(raw(name)) if name.startswith(_BYTES) else name


def name_of(link: Any) -> str:
    """Return the name of a link of pyroute2, as of `text`."""
    return text(link.get_attr("IFLA_IFNAME"))


def numbers_of(link: Any) -> dict[str, int]:
    """Return its numbers by attribute."""
    numbers = {name: int(value) for name in NUMBERS if (value := link.get_attr(name)) is not None}
    return numbers | newer_numbers(int(link["index"]))


def newer_numbers(index: int) -> dict[str, int]:
    """Return those numbers that pyroute2 does not know, as far as the kernel does."""
    with Connection(ROUTE) as kernel:
        (reply,) = kernel.request(_RTM_GETLINK, _LINK_HEADER.pack(0, 0, index, 0, 0))
    found = attributes(reply[_LINK_HEADER.size :])
    return {name: int.from_bytes(found[kind], sys.byteorder) for name, kind in _NEWER_NUMBERS.items() if kind in found}


def set_newer_number(index: int, name: str, value: int) -> None:
    """Set such a number; raises the kernel's OSError."""
    _set(index, _NEWER_NUMBERS[name], value.to_bytes(4, sys.byteorder))


def set_reported_up(index: int) -> None:
    """Have the kernel report the link as up; raises its OSError."""
    _set(index, _IFLA_OPERSTATE, _IF_OPER_UP)


def _set(index: int, kind: int, value: bytes) -> None:
    with Connection(ROUTE) as kernel:
        kernel.request(_RTM_SETLINK, _LINK_HEADER.pack(0, 0, index, 0, 0) + attribute(kind, value))


def xdp_of(link: Any) -> dict[int, int]:
    """Return the IDs of its XDP programs by the flag of their mode."""
    found = link.get_attr("IFLA_XDP")
    if found is None:
        return {}
    return {flag: int(program) for mode, flag in _XDP_MODES.items() if (program := found.get_attr(mode))}


def altnames_of(link: Any) -> list[str]:
    """Return its alternative names, as of `text`."""
    names = link.get_attr("IFLA_PROP_LIST")
    return [] if names is None else [text(name) for name in names.get_attrs("IFLA_ALT_IFNAME")]


def alias_of(link: Any) -> str:
    """Return its alias, as of `text`."""
    return text(link.get_attr("IFLA_IFALIAS"))


def master_of(link: Any, links: dict[int, Any]) -> Master:
    """Return what it is a port of."""
    index = int(link.get_attr("IFLA_MASTER") or 0)
    return Master(index, name_of(links[index]) if index in links else "")
