"""The network of this process's namespace, from the kernel over rtnetlink (linux/rtnetlink.h, linux/if_link.h)."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dra_agent.claimable.network_view import LOCAL_TABLE, Interface, NetworkView, Routes, Stack, too_many_routes
from dra_agent.netlink_dump import attribute, attributes, dump, next_hops

_RTM_GETLINK, _RTM_GETADDR, _RTM_GETROUTE, _RTM_GETNEXTHOP = 18, 22, 26, 106

_LINK = struct.Struct("=BxHiII")
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_EXT_MASK, _IFLA_LINK_NETNSID = 3, 5, 10, 18, 29, 37
_IFLA_INFO_KIND = 1
_SKIP_STATS = struct.pack("=I", 1 << 3)
"""RTEXT_FILTER_SKIP_STATS: most of the bytes of a link are its counters."""
_PEERS = frozenset({"veth", "netkit", "vxcan"})
"""Their IFLA_LINK is the other end, which does not carry their packets."""
_ON_NOTHING = _PEERS | {"bridge", "bond", "dummy", "ifb", "openvswitch", "team", "tun", "vrf", "wireguard"}
"""Kinds that only have ports, or nothing below."""
_CLASS_NET = Path("/sys/class/net")

_ADDRESS = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_LINK = 253
"""Link-local and host addresses have this scope or a narrower one; other hosts cannot use them."""
_PERMANENT = 0x80
"""IFA_F_PERMANENT (linux/if_addr.h)."""

_ROUTE = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_TABLE, _RTA_VIA, _RTA_NH_ID = 1, 4, 5, 9, 15, 18, 30
_UNICAST = 1
"""RTN_UNICAST: not local, broadcast, blackhole or unreachable."""
_CLONED = 0x200
"""RTM_F_CLONED: an entry of a cache."""

_NEXTHOP = struct.Struct("=BBBBI")
_NHA_ID, _NHA_GROUP, _NHA_OIF, _NHA_GATEWAY = 1, 2, 5, 6
_GROUP_MEMBER = struct.Struct("=IBBH")

_NUMBER = struct.Struct("=I")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)

_Exit = tuple[int, bytes | None]
"""An interface that a route leaves through, and the gateway there."""


class Address(NamedTuple):
    """An address of an interface that other hosts can use."""

    interface: int
    """Its number (ifindex)."""
    text: str
    """In CIDR notation."""
    is_permanent: bool
    """It does not expire (DHCP, SLAAC)."""


class _Link(NamedTuple):
    number: int
    name: str
    kind: str | None
    master: int
    below: int
    """0: none in this network namespace."""


class _NexthopRoute(NamedTuple):
    """A route that has the number of a nexthop object only (sysctl net.ipv4.nexthop_compat_mode=0)."""

    destination: bytes
    prefix: int
    table: int
    nexthop: int


def read(deadline: float, max_routes: int) -> NetworkView:
    """Return the network, incomplete if there are more routes; OSError if the kernel does not return it in time.

    `deadline`: in seconds of `time.monotonic()`.
    """
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + attribute(_IFLA_EXT_MASK, _SKIP_STATS)
    links = dump(_RTM_GETLINK, body, lambda messages: [_link(message) for message in messages], deadline=deadline)
    addresses: dict[int, list[str]] = {}
    for address in dump_addresses(deadline):
        addresses.setdefault(address.interface, []).append(address.text)
    table = _RouteTable(max_routes)
    for family in _FAMILIES:
        table.read(family, deadline)
    routes = table.resolved(deadline)
    try:
        return _view(links, addresses, routes, too_many_routes(max_routes) if table.is_full else None)
    except ValueError as error:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)) from error


def dump_addresses(deadline: float) -> list[Address]:
    """Return the addresses of all interfaces without those of link-local scope; OSError if they are not all."""
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return dump(_RTM_GETADDR, body, lambda messages: list(filter(None, map(_address, messages))), deadline=deadline)


def _view(
    links: Sequence[_Link], addresses: dict[int, list[str]], routes: Routes[int], incomplete: str | None
) -> NetworkView:
    names = {link.number: link.name for link in links}
    stack = Stack()
    for link in links:
        if link.master in names:
            stack.add(names[link.master], link.name)
        # Some drivers set it to the interface itself.
        if link.below in names and link.below != link.number:
            stack.add(link.name, names[link.below])
        elif link.kind is not None and link.kind not in _ON_NOTHING:
            for name in _lower(link.name):
                stack.add(link.name, name)
    interfaces = {}
    for link in links:
        master = names.get(link.master)
        interfaces[link.name] = Interface(
            link.name,
            link.kind,
            master,
            stack.uppers(link.name, master),
            tuple(sorted(addresses.get(link.number, ()))),
            unknown=None,
            **routes.of(link.number),
        )
    return NetworkView(interfaces, incomplete)


def _lower(upper: str) -> list[str]:
    """Return what a virtual interface is on: of VXLAN, HSR and AMT, a link has it in attributes of its kind only."""
    try:
        names = os.listdir(_CLASS_NET / upper)  # noqa: PTH208 - a name, not a Path, per entry
    except OSError:  # it was removed meanwhile
        return []
    return [name.removeprefix("lower_") for name in names if name.startswith("lower_")]


def _link(message: bytes) -> _Link:
    _, _, index, _, _ = _LINK.unpack_from(message)
    values = attributes(message, _LINK.size)
    info = attributes(values.get(_IFLA_LINKINFO, b""), 0).get(_IFLA_INFO_KIND)
    kind = None if info is None else _text(info)
    # Across network namespaces the index is one of the other namespace.
    is_here = _IFLA_LINK_NETNSID not in values and kind not in _PEERS
    below = _number(values.get(_IFLA_LINK)) if is_here else 0
    return _Link(index, _text(values.get(_IFLA_IFNAME, b"")), kind, _number(values.get(_IFLA_MASTER)), below)


def _address(message: bytes) -> Address | None:
    family, prefix, flags, scope, index = _ADDRESS.unpack_from(message)
    if scope >= _SCOPE_LINK or family not in _FAMILIES:
        return None
    values = attributes(message, _ADDRESS.size)
    # On a point-to-point link IFA_ADDRESS is the other end; IFA_LOCAL is then this one.
    raw = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    # Commands give 169.254.0.0/16 the scope of other addresses.
    if raw is None or (address := ipaddress.ip_address(raw)).is_link_local:
        return None
    return Address(index, f"{address}/{prefix}", bool(flags & _PERMANENT))


class _RouteTable:
    """The routes of all tables and of both families."""

    def __init__(self, max_routes: int) -> None:
        self._left = max_routes
        self.is_full = False
        """There are more routes than are read."""
        self._routes: Routes[int] = Routes()
        self._by_nexthop: list[_NexthopRoute] = []

    def read(self, family: int, deadline: float) -> None:
        """Read the routes of a family."""
        body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
        routes, by_nexthop, count = dump(_RTM_GETROUTE, body, self._read, deadline=deadline)
        self._routes.merge(routes)
        self._by_nexthop += by_nexthop
        self.is_full = self.is_full or count > self._left
        self._left -= min(count, self._left)

    def _read(self, messages: Iterator[bytes]) -> tuple[Routes[int], list[_NexthopRoute], int]:
        routes: Routes[int] = Routes()
        by_nexthop: list[_NexthopRoute] = []
        count = 0
        for count, message in enumerate(messages, 1):
            if count > self._left:
                break
            family, prefix, _, _, table, _, _, kind, flags = _ROUTE.unpack_from(message)
            if kind != _UNICAST or flags & _CLONED or family not in _FAMILIES:
                continue
            values = attributes(message, _ROUTE.size)
            table = _number(values.get(_RTA_TABLE)) or table
            if table == LOCAL_TABLE:
                continue
            destination = values.get(_RTA_DST, b"")
            exits = _exits(values)
            for index, gateway in exits:
                routes.add(index, destination, prefix, gateway, table)
            if not exits and _RTA_NH_ID in values:
                by_nexthop.append(_NexthopRoute(destination, prefix, table, _number(values[_RTA_NH_ID])))
        return routes, by_nexthop, count

    def resolved(self, deadline: float) -> Routes[int]:
        """Return the routes, with those by nexthop objects."""
        if self._by_nexthop:
            nexthops = dump(_RTM_GETNEXTHOP, _NEXTHOP.pack(socket.AF_UNSPEC, 0, 0, 0, 0), _nexthops, deadline=deadline)
            for route in self._by_nexthop:
                for index, gateway in nexthops.get(route.nexthop, ()):
                    self._routes.add(index, route.destination, route.prefix, gateway, route.table)
        return self._routes


def _nexthops(messages: Iterator[bytes]) -> dict[int, list[_Exit]]:
    exits: dict[int, list[_Exit]] = {}
    groups: dict[int, list[int]] = {}
    for message in messages:
        values = attributes(message, _NEXTHOP.size)
        number = _number(values.get(_NHA_ID))
        if _NHA_GROUP in values:
            groups[number] = [member for member, *_ in _GROUP_MEMBER.iter_unpack(values[_NHA_GROUP])]
        elif _NHA_OIF in values:
            exits[number] = [(_number(values[_NHA_OIF]), values.get(_NHA_GATEWAY))]
    # A group has no groups.
    return exits | {
        number: [one for member in members for one in exits.get(member, ())] for number, members in groups.items()
    }


def _exits(values: dict[int, bytes]) -> list[_Exit]:
    out = values.get(_RTA_OIF)
    found = [] if out is None else [(_number(out), _gateway(values))]
    return found + [(index, _gateway(one)) for index, one in next_hops(values.get(_RTA_MULTIPATH, b""))]


def _gateway(values: dict[int, bytes]) -> bytes | None:
    # struct rtvia: a gateway of the other family, after two bytes.
    via = values.get(_RTA_VIA)
    return values.get(_RTA_GATEWAY) if via is None else via[2:]


def _number(value: bytes | None) -> int:
    return 0 if value is None else int(_NUMBER.unpack(value)[0])


def _text(value: bytes) -> str:
    return os.fsdecode(value.split(b"\0", 1)[0])
