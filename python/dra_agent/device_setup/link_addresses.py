"""Addresses of an interface and its routes, which a move removes: as the kernel returns them, and added again.

The messages of rtnetlink have all settings: peer, metric, label, flags such as `noprefixroute`, and a route's table.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from dra_agent import netlink_dump
from dra_agent.deadline import Deadline
from dra_agent.device_setup.link import NotRestorableError, TooManyError
from dra_agent.device_setup.netlink_request import ROUTE, Connection, attribute, attributes

MAX_ENTRIES = 1 << 10
"""Maximum addresses, and maximum routes, that are recorded: the record of an interface is limited, and each one is
added again while the release of a claim waits."""
_TIMEOUT_S = 5.0
_ROUTES_TIMEOUT_S = 3.0
"""Seconds until the kernel has accepted all routes: it accepts an IPv6 source after the check for a duplicate, which
takes up to two (RFC 4862)."""
_POLL_INTERVAL_S = 0.1
_RTM_NEWADDR, _RTM_GETADDR, _RTM_NEWROUTE, _RTM_GETROUTE = 20, 22, 24, 26
_CREATE = 0x200 | 0x400
"""NLM_F_EXCL and NLM_F_CREATE."""
_ADDRESS = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_PERMANENT, _IFA_F_NOPREFIXROUTE = 0x80, 0x200
_SCOPE_LINK = 253
_ROUTE = struct.Struct("=BBBBBBBBI")
_ROUTE_DUMPS = tuple(_ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) for family in (socket.AF_INET, socket.AF_INET6))
_RTA_DST, _RTA_OIF, _RTA_PREFSRC, _RTA_MULTIPATH = 1, 4, 7, 9
_NOT_ADDED = frozenset({12, 30})
"""RTA_CACHEINFO, which changes with each use, and RTA_NH_ID: the kernel removes a nexthop object with its interface,
and a request has either the object or an interface."""
_UNICAST, _LOCAL_TABLE = 1, 255
_OF_ROUTER = frozenset({1, 9})
"""RTPROT_REDIRECT and RTPROT_RA: the kernel makes them on a message of a router."""
_RTPROT_KERNEL = 2
_CLONED, _ONLINK = 0x200, 0x4
"""RTM_F_CLONED, RTNH_F_ONLINK; the other flags are of the present state."""
_INDEX = struct.Struct("=I")


def read(index: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Return the addresses of an interface that do not expire, and its routes.

    Raises NotRestorableError, and OSError if the kernel does not return all.
    """
    deadline = time.monotonic() + _TIMEOUT_S

    def matching(is_wanted: Callable[[bytes], bool]) -> Callable[[Iterator[bytes]], _Found]:
        return lambda messages: _Found.of(message for message in messages if is_wanted(message))

    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    found = netlink_dump.dump(_RTM_GETADDR, body, matching(lambda one: _is_own_address(one, index)), deadline=deadline)
    added = frozenset(filter(None, map(_added_prefix, found.kept)))
    routes = _Found((), 0)
    for body in _ROUTE_DUMPS:
        more = netlink_dump.dump(
            _RTM_GETROUTE, body, matching(lambda one: _is_own_route(one, index, added)), deadline=deadline
        )
        routes = _Found(routes.kept + more.kept, routes.total + more.total)
    for one, what in ((found, "addresses"), (routes, "routes")):
        if one.total > MAX_ENTRIES:
            raise TooManyError(one.total, what, MAX_ENTRIES)
    if shared := next((one for one in routes.kept if not _is_over(one, index)), None):
        # The kernel keeps the route with its other next hops, and takes none as the same route again.
        name, _ = _route(shared, index)
        raise NotRestorableError(f"it is one of the next hops of the {name}, which could not be restored after a move")
    return found.kept, routes.kept


class _Found(NamedTuple):
    kept: tuple[bytes, ...]
    """At most the first MAX_ENTRIES."""
    total: int

    @classmethod
    def of(cls, messages: Iterator[bytes]) -> _Found:
        kept = tuple(islice(messages, MAX_ENTRIES))
        return cls(kept, len(kept) + sum(1 for _ in messages))


class Restored(NamedTuple):
    """What was added, and what could not be, with the reason."""

    added: list[str]
    failed: list[str]
    """Addresses."""
    missing: list[str]
    """Routes. What they depend on can have changed meanwhile: another interface, an address, a nexthop object."""


def restore(index: int, addresses: Sequence[bytes], routes: Sequence[bytes]) -> Restored:
    """Add those that are missing."""
    added: list[str] = []
    failed: list[str] = []
    with Connection(ROUTE) as kernel:
        for name, request in (_address(message, index) for message in addresses):
            try:
                kernel.request(_RTM_NEWADDR, request, _CREATE)
            except FileExistsError:
                continue
            except OSError as error:
                failed.append(f"{name} is not restored: {error.strerror}")
            else:
                added.append(f"{name} restored")
        done, missing = _add_routes(kernel, index, routes)
    return Restored(added + done, failed, missing)


def _add_routes(kernel: Connection, index: int, routes: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Add routes; the kernel can refuse one until it has checked the address that is its source."""
    present = _present_routes(index) if routes else frozenset()
    pending = [one for one in (_route(message, index) for message in routes) if one[1] not in present]
    added: list[str] = []
    existing: list[str] = []
    deadline = Deadline.of(_ROUTES_TIMEOUT_S)
    while True:
        refused: dict[tuple[str, bytes], str] = {}
        for name, request in pending:
            try:
                kernel.request(_RTM_NEWROUTE, request, _CREATE)
            except FileExistsError as error:
                existing.append(f"{name} is not restored: {error.strerror}")
            except OSError as error:
                refused[name, request] = f"{name} is not restored: {error.strerror}"
            else:
                added.append(f"{name} restored")
        if not refused or not deadline.remaining():
            return added, [*refused.values(), *existing]
        time.sleep(_POLL_INTERVAL_S)
        pending = list(refused)


def _present_routes(index: int) -> frozenset[bytes]:
    """Return the requests for the routes that the interface has; none if the kernel does not list them."""
    deadline = time.monotonic() + _TIMEOUT_S

    def requests(messages: Iterator[bytes]) -> frozenset[bytes]:
        return frozenset(_route(one, index)[1] for one in messages if _is_over(one, index))

    with suppress(OSError):
        return frozenset().union(
            *(netlink_dump.dump(_RTM_GETROUTE, body, requests, deadline=deadline) for body in _ROUTE_DUMPS)
        )
    return frozenset()


def _is_own_address(message: bytes, index: int) -> bool:
    family, _, flags, scope, of = _ADDRESS.unpack_from(message)
    # The kernel makes those of IPv6 when the interface is switched on.
    return of == index and bool(flags & _IFA_F_PERMANENT) and (family == socket.AF_INET or scope < _SCOPE_LINK)


class _Prefix(NamedTuple):
    """The network of an address."""

    family: int
    length: int
    network: bytes
    source: bytes
    """The address; with IPv6, routes to it do not name it."""


def _added_prefix(message: bytes) -> _Prefix | None:
    """Return the network of an address for which the kernel makes no route: NetworkManager adds one as the kernel's."""
    family, length, *_ = _ADDRESS.unpack_from(message)
    values = attributes(message[_ADDRESS.size :])
    if not int.from_bytes(values.get(_IFA_FLAGS, b""), sys.byteorder) & _IFA_F_NOPREFIXROUTE:
        return None
    address = values.get(_IFA_ADDRESS, b"")
    host_bits = len(address) * 8 - length
    network = (int.from_bytes(address) >> host_bits << host_bits).to_bytes(len(address))
    return _Prefix(family, length, network, values.get(_IFA_LOCAL, b"") if family == socket.AF_INET else b"")


def _is_own_route(message: bytes, index: int, added: Container[_Prefix]) -> bool:
    family, length, _, _, table, protocol, _, kind, flags = _ROUTE.unpack_from(message)
    if kind != _UNICAST or protocol in _OF_ROUTER or table == _LOCAL_TABLE or flags & _CLONED:
        return False
    values = netlink_dump.attributes(message, _ROUTE.size)
    if index in (hop for hop, _ in netlink_dump.next_hops(values.get(_RTA_MULTIPATH, b""))):
        return True
    if values.get(_RTA_OIF) != _INDEX.pack(index):
        return False
    # The kernel makes its own with the address.
    prefix = _Prefix(family, length, values.get(_RTA_DST, b""), values.get(_RTA_PREFSRC, b""))
    return protocol != _RTPROT_KERNEL or prefix in added


def _is_over(message: bytes, index: int) -> bool:
    return netlink_dump.attributes(message, _ROUTE.size).get(_RTA_OIF) == _INDEX.pack(index)


def _address(message: bytes, index: int) -> tuple[str, bytes]:
    family, prefix, flags, scope, _ = _ADDRESS.unpack_from(message)
    values = attributes(message[_ADDRESS.size :])
    address = next((values[kind] for kind in (_IFA_LOCAL, _IFA_ADDRESS) if kind in values), b"")
    header = _ADDRESS.pack(family, prefix, flags, scope, index)
    return f"address {_text(address)}/{prefix}", header + _joined(values.items())


def _route(message: bytes, index: int) -> tuple[str, bytes]:
    *fields, flags = _ROUTE.unpack_from(message)
    values = attributes(message[_ROUTE.size :]) | {_RTA_OIF: _INDEX.pack(index)}
    values = {kind: value for kind, value in values.items() if kind not in _NOT_ADDED}
    header = _ROUTE.pack(*fields, flags & _ONLINK)
    return f"route {_text(values.get(_RTA_DST, b''))}/{fields[1]}", header + _joined(values.items())


def _joined(values: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(attribute(kind, value) for kind, value in values)


def _text(address: bytes) -> str:
    return str(ipaddress.ip_address(address)) if address else "default"
