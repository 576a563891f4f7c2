"""What is known of a host's network at one time: interfaces, their addresses, and the routes through them."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from dra_agent.diagnostic import Diagnostic

MAIN_TABLE, LOCAL_TABLE = 254, 255
"""RT_TABLE_MAIN and RT_TABLE_LOCAL (linux/rtnetlink.h)."""
_IPV4_BYTES = 4


class Route(msgspec.Struct, frozen=True, omit_defaults=True):
    """One route of an interface."""

    destination: str
    """In CIDR notation; "default" for all destinations."""
    gateway: str | None = None
    """None: destinations are on the link."""
    table: int | None = MAIN_TABLE
    """None: the host's files do not show it."""

    def __str__(self) -> str:
        text = f"the {'default route' if self.destination == 'default' else f'route {self.destination}'}"
        if self.gateway is not None:
            text += f" via {self.gateway}"
        return text if self.table in (None, MAIN_TABLE) else f"{text} (table {self.table})"


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """One interface of the host's network namespace.

    Of the routes of a kind there is one: that of the main table with the lowest destination, where there are several.
    """

    name: str
    """Bytes that are not UTF-8 are surrogates (os.fsdecode)."""
    kind: str | None = None
    """The kind of a virtual interface: "bond", "vlan", "vrf"; None for hardware."""
    master: str | None = None
    """The bond, bridge, team or VRF that it is a port of."""
    uppers: tuple[str, ...] = ()
    """Interfaces of this network namespace on top of it (VLAN, macvlan), without the master."""
    addresses: tuple[str, ...] = ()
    """In CIDR notation, without those of link-local scope."""
    default_route: Route | None = None
    gateway_route: Route | None = None
    """Another route that has a gateway."""
    connected_route: Route | None = None
    """Another route without a gateway; none of link-local or multicast destinations."""
    unknown: str | None = None
    """Why a part of it is not known, as of `NetworkView.incomplete`."""


class NetworkView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The host's network; what is missing in an incomplete view can be in use."""

    interfaces: dict[str, Interface]
    """By name; not changed after the view was made."""
    incomplete: str | None = None
    """Why a part of the network is not known: a clause with a verb ("the host has more than 100,000 routes")."""
    late: str | None = None
    """Why this is the last complete view of an earlier time; interfaces that are not in it are not known."""
    problems: tuple[Diagnostic, ...] = ()


def too_many_routes(limit: int) -> str:
    """Return why a view with this many routes is incomplete."""
    return f"the host has more than {limit:,} routes"


class Stack:
    """Which interface is on top of which; builds the `uppers` of interfaces."""

    def __init__(self) -> None:
        self._uppers: dict[str, set[str]] = {}

    def add(self, upper: str, lower: str) -> None:
        """Note that `upper` sends its packets through `lower`."""
        self._uppers.setdefault(lower, set()).add(upper)

    def has_upper(self, name: str) -> bool:
        """Return whether an interface is on top of this one."""
        return name in self._uppers

    def uppers(self, name: str, master: str | None) -> tuple[str, ...]:
        """Return the interfaces on top of one, without its master."""
        found = self._uppers.get(name)
        return tuple(sorted(found - {master})) if found else ()


_Key = TypeVar("_Key", bound=Hashable)
_Rank = tuple[bool, int, int, bytes, int, bytes]


class Routes(Generic[_Key]):
    """Chooses the routes of each interface that a view has; interfaces have names or numbers."""

    def __init__(self) -> None:
        self._kept: dict[_Key, dict[str, tuple[_Rank, int | None]]] = {}
        """By interface, and by the field of `Interface`."""

    def add(self, interface: _Key, destination: bytes, prefix: int, gateway: bytes | None, table: int | None) -> None:
        """Add a route through an interface to other hosts; addresses are in network order."""
        if not prefix:
            kind = "default_route"
        elif _is_multicast(destination, prefix) or (gateway is None and _is_link_local(destination, prefix)):
            return
        else:
            kind = "connected_route" if gateway is None else "gateway_route"
        # Independent of the kernel's order; IPv4 is first.
        number = MAIN_TABLE if table is None else table
        rank = number != MAIN_TABLE, number, len(destination), destination, prefix, gateway or b""
        self._keep(interface, kind, rank, table)

    def merge(self, other: Routes[_Key]) -> None:
        """Add the routes of another one."""
        for interface, routes in other._kept.items():
            for kind, (rank, table) in routes.items():
                self._keep(interface, kind, rank, table)

    def _keep(self, interface: _Key, kind: str, rank: _Rank, table: int | None) -> None:
        routes = self._kept.setdefault(interface, {})
        kept = routes.get(kind)
        if kept is None or rank < kept[0]:
            routes[kind] = rank, table

    def of(self, interface: _Key) -> dict[str, Route]:
        """Return the routes of an interface by the field of `Interface`; ValueError if an address is damaged."""
        return {kind: _route(*kept) for kind, kept in self._kept.get(interface, {}).items()}


def _route(rank: _Rank, table: int | None) -> Route:
    _, _, _, destination, prefix, gateway = rank
    to = str(ipaddress.ip_network((destination, prefix), strict=False)) if prefix else "default"
    return Route(to, str(ipaddress.ip_address(gateway)) if gateway else None, table)


def _is_multicast(destination: bytes, prefix: int) -> bool:
    if len(destination) == _IPV4_BYTES:
        return prefix >= 4 and destination[0] >> 4 == 0xE
    return prefix >= 8 and destination[:1] == b"\xff"


def _is_link_local(destination: bytes, prefix: int) -> bool:
    if len(destination) == _IPV4_BYTES:
        return prefix >= 16 and destination[:2] == b"\xa9\xfe"
    return prefix >= 10 and destination[:1] == b"\xfe" and destination[1:2] >= b"\x80" and destination[1:2] < b"\xc0"
