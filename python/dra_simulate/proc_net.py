"""Addresses and routes of the host in /proc/net: route, fib_trie, ipv6_route and if_inet6.

Formats after the kernel's net/ipv4/fib_trie.c, net/ipv6/route.c (`rt6_info_route`, `fib6_native_route`) and
net/ipv6/addrconf.c (`if6_seq_show`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface, ip_network
from typing import TYPE_CHECKING, Literal, NamedTuple

from dra_simulate.host_network import LOCAL_TABLE, MAIN_TABLE, Bond, Netdev, Vrf, netdevs
from dra_simulate.tree import Tree

if TYPE_CHECKING:
    from dra_simulate.machine import Machine

RTF_UP, RTF_GATEWAY, RTF_HOST, RTF_REJECT, RTF_NONEXTHOP = 0x1, 0x2, 0x4, 0x200, 0x200000
"""linux/route.h and linux/ipv6_route.h."""
_RTF_LOCAL = 0x8000_0000
_IP6_RT_PRIO_USER, _IP6_RT_PRIO_ADDRCONF = 1024, 256
_SCOPE_GLOBAL, _SCOPE_LINK, _SCOPE_HOST = 0x00, 0x20, 0x10
_IFA_F_TENTATIVE, _IFA_F_PERMANENT = 0x40, 0x80
_LINE_WIDTH = 127
_LOOPBACK_INDEX = 1
_HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"

_Type = Literal["UNICAST", "LOCAL", "BROADCAST"]
_Scope = Literal["universe", "link", "host"]


@dataclass(frozen=True, slots=True)
class _Row4:
    """A route of the IPv4 tables."""

    network: IPv4Network
    interface: str
    gateway: IPv4Address | None = None
    metric: int = 0
    type: _Type = "UNICAST"
    scope: _Scope = "link"


class _Row6(NamedTuple):
    """A row of ipv6_route."""

    network: IPv6Network
    gateway: IPv6Address
    metric: int
    flags: int
    interface: str


def plan(machine: Machine, tree: Tree) -> None:
    """Add the files, if the machine's network is described."""
    if machine.network is None:
        return
    known = netdevs(machine)
    tables = _ipv4_tables(machine, known)
    tree.file("proc/net/route", os.fsencode(_route(tables.get(MAIN_TABLE, ()))))
    tree.file("proc/net/fib_trie", "".join(_fib_trie(tables)).encode())
    addresses = list(_ipv6_addresses(machine, known))
    tree.file("proc/net/if_inet6", os.fsencode("".join(_if_inet6(addresses, known))))
    tree.file("proc/net/ipv6_route", os.fsencode("".join(map(_line6, _ipv6_routes(machine, known, addresses)))))


def _ipv4_tables(machine: Machine, known: Mapping[str, Netdev]) -> dict[int, list[_Row4]]:
    """Return the routes by table: those of addresses, and those that are configured."""
    assert machine.network is not None
    loopback = [
        _Row4(IPv4Network("127.0.0.0/8"), "lo", type="LOCAL", scope="host"),
        _Row4(IPv4Network("127.0.0.1/32"), "lo", type="LOCAL", scope="host"),
        _Row4(IPv4Network("127.255.255.255/32"), "lo", type="BROADCAST"),
    ]
    tables: dict[int, list[_Row4]] = defaultdict(list, {LOCAL_TABLE: loopback})
    vrfs = {port: one.table for one in machine.network.interfaces if isinstance(one, Vrf) for port in one.ports}
    for entry in machine.network.addresses:
        own = ip_interface(entry.address)
        if own.version != 4 or entry.interface not in known:
            continue
        network, table = own.network, vrfs.get(entry.interface)
        tables[table or LOCAL_TABLE].append(_Row4(IPv4Network(own.ip), entry.interface, type="LOCAL", scope="host"))
        # An interface that is off keeps its addresses, without the routes to its network.
        if not known[entry.interface].is_enabled:
            continue
        if network.prefixlen < 32:
            tables[table or MAIN_TABLE].append(_Row4(network, entry.interface))
        if network.prefixlen < 31:
            broadcast = IPv4Network(network.broadcast_address)
            tables[table or LOCAL_TABLE].append(_Row4(broadcast, entry.interface, type="BROADCAST"))
    for route in machine.network.routes:
        destination = ip_network(route.destination)
        if destination.version == 4 and _is_enabled(route.interface, known):
            gateway = IPv4Address(route.gateway) if route.gateway else None
            scope: _Scope = "universe" if gateway else "link"
            tables[route.table].append(_Row4(destination, route.interface, gateway, route.metric, scope=scope))
    return tables


def _is_enabled(name: str, known: Mapping[str, Netdev]) -> bool:
    return name in known and known[name].is_enabled


def _route(rows: Sequence[_Row4]) -> str:
    """Return the main table; numbers are in the byte order of the CPU, and lines have equal length."""
    lines = [_HEADER]
    for row in sorted(rows, key=_trie_order):
        flags = RTF_UP | (RTF_GATEWAY if row.gateway else 0) | (RTF_HOST if row.network.prefixlen == 32 else 0)
        fields = (
            row.interface,
            _little(row.network.network_address),
            _little(row.gateway or IPv4Address(0)),
            f"{flags:04X}",
            0,
            0,
            row.metric,
            _little(row.network.netmask),
            0,
            0,
            0,
        )
        lines.append("\t".join(map(str, fields)))
    return "".join(f"{line:<{_LINE_WIDTH}}\n" for line in lines)


def _trie_order(row: _Row4) -> tuple[int, int, int]:
    """Order of a walk through the trie: by address, the longest prefix of one first."""
    return int(row.network.network_address), -row.network.prefixlen, row.metric


def _little(address: IPv4Address) -> str:
    return address.packed[::-1].hex().upper()


def _fib_trie(tables: Mapping[int, Sequence[_Row4]]) -> Iterator[str]:
    """Return the tries of all tables. Without policy rules, main and local are one trie that is printed twice."""
    rules = any(number not in (MAIN_TABLE, LOCAL_TABLE) for number in tables)
    both = [*tables.get(MAIN_TABLE, ()), *tables.get(LOCAL_TABLE, ())]
    for number in sorted({*tables, MAIN_TABLE, LOCAL_TABLE}):
        name = {MAIN_TABLE: "Main", LOCAL_TABLE: "Local"}.get(number, f"Id {number}")
        rows = tables.get(number, ()) if rules else both
        if rows:
            yield f"{name}:\n"
            leaves: dict[int, list[_Row4]] = defaultdict(list)
            for row in sorted(rows, key=_trie_order):
                leaves[int(row.network.network_address)].append(row)
            yield from _node(leaves, sorted(leaves), 0)


def _node(leaves: Mapping[int, list[_Row4]], keys: list[int], depth: int) -> Iterator[str]:
    """Return a leaf, or a node whose keys agree in their first bits.

    Nodes have one bit: the kernel's inflate to more bits where a trie is dense, by the order of insertions.
    """
    indent = "   " * depth
    if len(keys) == 1:
        yield f"{indent}  |-- {IPv4Address(keys[0])}\n"
        for row in leaves[keys[0]]:
            yield f"{indent}     /{row.network.prefixlen} {row.scope} {row.type}\n"
        return
    shared = 32 - (keys[0] ^ keys[-1]).bit_length()
    bit = 1 << 31 - shared
    halves = [key for key in keys if not key & bit], [key for key in keys if key & bit]
    prefix = keys[0] & ~(2 * bit - 1)
    full = sum(len(half) > 1 and 32 - (half[0] ^ half[-1]).bit_length() == shared + 1 for half in halves)
    yield f"{indent}  +-- {IPv4Address(prefix)}/{shared} 1 {full} 0\n"
    for half in halves:
        yield from _node(leaves, half, depth + 1)


def _ipv6_addresses(machine: Machine, known: Mapping[str, Netdev]) -> Iterator[tuple[str, IPv6Address, int]]:
    """Return interface, address and prefix length: those that are configured, and the link-local ones of the kernel.

    Members of a bond have no IPv6, and an interface without a link has no link-local address.
    """
    assert machine.network is not None
    yield "lo", IPv6Address("::1"), 128
    for entry in machine.network.addresses:
        own = ip_interface(entry.address)
        if own.version == 6 and entry.interface in known:
            yield entry.interface, own.ip, own.network.prefixlen
    members = {port for one in machine.network.interfaces if isinstance(one, Bond) for port in one.ports}
    vrfs = {one.name for one in machine.network.interfaces if isinstance(one, Vrf)}
    for netdev in known.values():
        if netdev.is_up and netdev.name not in members | vrfs:
            yield netdev.name, _link_local(netdev.mac), 64


def _link_local(mac: str) -> IPv6Address:
    """Return the address from the hardware address (RFC 4291, RFC 4391 for InfiniBand)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    identity = octets[12:20] if len(octets) == 20 else octets[:3] + b"\xff\xfe" + octets[3:]
    first = identity[0] | 2 if len(octets) == 20 else identity[0] ^ 2
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([first]) + identity[1:])


def _if_inet6(addresses: Sequence[tuple[str, IPv6Address, int]], known: Mapping[str, Netdev]) -> Iterator[str]:
    for name, address, length in addresses:
        index = _LOOPBACK_INDEX if name == "lo" else known[name].index
        scope = _SCOPE_HOST if address.is_loopback else _SCOPE_LINK if address.is_link_local else _SCOPE_GLOBAL
        flags = _IFA_F_PERMANENT | (0 if _has_link(name, known) else _IFA_F_TENTATIVE)
        yield f"{address.packed.hex()} {index:02x} {length:02x} {scope:02x} {flags:02x} {name:>8}\n"


def _has_link(name: str, known: Mapping[str, Netdev]) -> bool:
    """Return whether addresses are in use: the detection of duplicates needs a link."""
    return name == "lo" or known[name].is_up


def _ipv6_routes(
    machine: Machine, known: Mapping[str, Netdev], addresses: Sequence[tuple[str, IPv6Address, int]]
) -> Iterator[_Row6]:
    assert machine.network is not None
    none = IPv6Address(0)
    main = []
    for name, address, length in addresses:
        if _is_enabled(name, known):
            network = IPv6Network((address, length), strict=False)
            main.append(_Row6(network, none, _IP6_RT_PRIO_ADDRCONF, RTF_UP, name))
    for route in machine.network.routes:
        destination = ip_network(route.destination)
        if destination.version == 6 and _is_enabled(route.interface, known):
            flags = RTF_UP | (RTF_GATEWAY if route.gateway else 0)
            gateway = IPv6Address(route.gateway) if route.gateway else none
            main.append(_Row6(destination, gateway, route.metric or _IP6_RT_PRIO_USER, flags, route.interface))
    yield from main
    # A table without a default route has one that refuses.
    refuse = _Row6(IPv6Network("::/0"), none, 0xFFFF_FFFF, RTF_NONEXTHOP | RTF_REJECT, "lo")
    if all(row.network.prefixlen for row in main):
        yield refuse
    for name, address, _ in addresses:
        if _has_link(name, known):
            yield _Row6(IPv6Network(address), none, 0, _RTF_LOCAL | RTF_NONEXTHOP | RTF_UP, name)
    for name in dict.fromkeys(name for name, _, _ in addresses if _is_enabled(name, known)):
        yield _Row6(IPv6Network("ff00::/8"), none, _IP6_RT_PRIO_ADDRCONF, RTF_UP, name)
    yield refuse


def _line6(row: _Row6) -> str:
    zero = IPv6Address(0).packed.hex()
    return (
        f"{row.network.network_address.packed.hex()} {row.network.prefixlen:02x} {zero} 00 {row.gateway.packed.hex()} "
        f"{row.metric:08x} {1:08x} {0:08x} {row.flags:08x} {row.interface:>8}\n"
    )
