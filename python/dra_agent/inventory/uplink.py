"""Finds the network interfaces of the host's default routes, down to the hardware.

A setting allows claims for such an interface.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory import net_links
from dra_agent.inventory.model import Diagnostic
from dra_agent.inventory.sysfs import SysfsDir

_UP = 0x1
_REJECT = 0x200
_SIOCGIFHWADDR = 0x8927
"""netdevice(7): the hardware address of an interface, by its name."""

_State = tuple[list[str], str | None, str | None, list[str | None]]
"""Names of interfaces, the routes of both families, and the bond or bridge of each interface of a NIC."""


class Uplinks:
    """Finds the interfaces, and queries rtnetlink again only after a change of interfaces or routes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._is_real = host.sysfs == Path("/sys") and host.proc == Path("/proc") and host.net is None
        self._cached_state: _State | None = None
        self._facts = net_links.LinkFacts()
        self._last: tuple[_State, frozenset[str], tuple[Diagnostic, ...]] | None = None
        """The last result, and the state that it belongs to."""

    def interfaces(
        self, problems: list[Diagnostic], of_nics: Iterable[str] = (), *, again: bool = True
    ) -> frozenset[str]:
        """Return the names of all interfaces that the host's default traffic passes.

        `of_nics`: names of the interfaces of NICs. `again`: read also what carries each interface, if names, routes and
        the ports of bonds and bridges are those of the last call.
        """
        found: list[Diagnostic] = []
        net = SysfsDir(self._host.sysfs / "class/net", found)
        routes = SysfsDir(self._host.net or self._host.proc / "net", found)
        masters = [net.subdir(name).link("master") for name in of_nics]
        state = net.names(), routes.text("route"), routes.text("ipv6_route"), masters
        if again or self._last is None or self._last[0] != state:
            self._last = state, self._read(net, state, found), tuple(found)
        _, uplinks, reported = self._last
        problems += reported
        return uplinks

    def _read(self, net: SysfsDir, state: _State, problems: list[Diagnostic]) -> frozenset[str]:
        names, ipv4, ipv6, _ = state
        # A configured path without files is an error, not a host without a default route.
        if self._host.net is not None and ipv4 is None and ipv6 is None:
            problems.append(
                Diagnostic(
                    str(self._host.net),
                    "neither route nor ipv6_route exists, so the interfaces that the host needs are unknown, and none"
                    " can be claimed",
                    "name the host's /proc/1/net (--net-root)",
                    severity="warning",
                )
            )
            return frozenset(names)
        # /proc/net and netlink belong to the agent's network namespace, sysfs to that of its mount.
        if self._is_real and (strange := foreign_interfaces(net, names)):
            problems.append(
                Diagnostic(
                    "network",
                    f"the agent has another network namespace ({strange[0]} is not in it) and cannot determine which"
                    " interfaces the host needs, so none can be claimed",
                    "provide the host's routes (--net-root), or run it in the host's network",
                    severity="warning",
                )
            )
            return frozenset(names)
        if self._is_real:
            self._refresh(state, problems)
        lower = {name: _lower(net, name) for name in names}
        for link in self._facts.links:
            lower.setdefault(link.name, []).extend(link.lower)
        return lower_devices({*_ipv4(ipv4), *_ipv6(ipv6), *self._facts.default_routes}, lower)

    def _refresh(self, state: _State, problems: list[Diagnostic]) -> None:
        if state == self._cached_state:
            return
        try:
            self._facts = net_links.query()
            self._cached_state = state
        except RetryableError as error:
            problems.append(Diagnostic(error.where or "rtnetlink", error.message, error.hint, severity="warning"))


def foreign_interfaces(net: SysfsDir, names: list[str]) -> list[str]:
    """Return the hardware interfaces of a sysfs that are not in the agent's network namespace.

    Names are not enough: a pod has another eth0.
    """
    hardware = [name for name in names if (net.folder / name / "device").exists()]
    addresses = {name: net.subdir(name).text("address") for name in hardware}
    return [name for name, address in addresses.items() if address is not None and not is_of_device(name, address)]


def is_of_device(name: str, address: str) -> bool:
    """Return True if the agent's network namespace has an interface with this name and hardware address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, os.fsencode(name).ljust(32, b"\0"))
            # struct ifreq: 16 bytes name, 2 bytes family, then the address; InfiniBand's is longer than there is room.
            return answer[18:24] == bytes.fromhex(address.replace(":", ""))[:6]
        except (OSError, ValueError):
            return False


def lower_devices(interfaces: set[str], lower: Mapping[str, list[str]]) -> frozenset[str]:
    """Add the lower interfaces: a bond's members, a VLAN's parent, a bridge's ports."""
    found: set[str] = set()
    open_ = set(interfaces)
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_.update(lower.get(name, ()))
    return frozenset(found)


def _lower(net: SysfsDir, name: str) -> list[str]:
    return [entry.removeprefix("lower_") for entry in net.names(name) if entry.startswith("lower_")]


def _ipv4(table: str | None) -> set[str]:
    """Read /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., numbers in hexadecimal."""
    found = set()
    for line in (table or "").splitlines()[1:]:
        fields = line.split()
        try:
            if int(fields[1], 16) == 0 and int(fields[7], 16) == 0 and int(fields[3], 16) & _UP:
                found.add(fields[0])
        except (IndexError, ValueError):
            continue
    return found


def _ipv6(table: str | None) -> set[str]:
    """Read /proc/net/ipv6_route: destination, its prefix length, ..., flags, interface."""
    found = set()
    for line in (table or "").splitlines():
        fields = line.split()
        try:
            flags = int(fields[8], 16)
            if int(fields[0], 16) == 0 and int(fields[1], 16) == 0 and flags & _UP and not flags & _REJECT:
                found.add(fields[9])
        except (IndexError, ValueError):
            continue
    return found - {"lo"}
