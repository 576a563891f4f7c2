"""A host's network from its files: sysfs, and the tables of /proc/net.

They show less than the kernel answers: IPv4 routes of the main table only, and of a multipath route one gateway.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dra_agent.claimable.network_view import MAIN_TABLE, Interface, NetworkView, Route, Routes, Stack, too_many_routes
from dra_agent.diagnostic import Diagnostic
from dra_agent.netdevice import is_of_device

_UP, _GATEWAY, _REJECT = 0x1, 0x2, 0x200
"""RTF_UP, RTF_GATEWAY, RTF_REJECT (linux/route.h)."""
_ANYCAST, _LOCAL = 0x100000, 0x80000000
"""RTF_ANYCAST, RTF_LOCAL (linux/ipv6_route.h)."""
_IFF_UP = 0x1
_NARROW_SCOPES = 0x10 | 0x20
"""IPV6_ADDR_LOOPBACK and IPV6_ADDR_LINKLOCAL (net/ipv6.h)."""
_OF_PCI_FUNCTION = re.compile(r"/[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/net/[^/]+$")
"""The target of an interface in /sys/class/net."""
_MAX_SMALL_FILE_BYTES = 4096
_IPV4_BITS = 32
_IPV6_BYTES = 16
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV})


def read(sysfs: Path, tables: Path, deadline: float, max_routes: int) -> NetworkView:
    """Return the network that the files below sysfs and /proc/net show; TimeoutError after the deadline.

    `deadline`: in seconds of `time.monotonic()`. The view is incomplete if a file cannot be read, or has more routes.
    """
    files = _Files(deadline)
    links = _Links(files, sysfs)
    routes = _RouteTables(files, tables, max_routes)
    addresses = routes.addresses()
    interfaces = {}
    for name in sorted(links.names.union(routes.names, addresses)):
        master = links.masters.get(name)
        interfaces[name] = Interface(
            name,
            links.kind(name),
            master,
            links.stack.uppers(name, master),
            tuple(sorted(addresses[name])) if name in addresses else (),
            unknown=None,
            **routes.of(name),
        )
    if (unplaced := routes.unplaced()) is not None:
        unknown = f"the host has the address {unplaced} on an interface that its files do not show"
        for name, one in interfaces.items():
            if not one.addresses and one.connected_route is None and links.may_be_up(name):
                interfaces[name] = replace(one, unknown=unknown)
    incomplete = too_many_routes(max_routes) if routes.is_full else None
    for problem in files.problems:
        unknown = f"{problem.where} cannot be read"
        owner = interfaces.get(links.owner(problem.where) or "")
        if owner is not None:
            interfaces[owner.name] = replace(owner, unknown=owner.unknown or unknown)
        else:
            incomplete = incomplete or unknown
    return NetworkView(interfaces, incomplete, problems=tuple(files.problems))


def foreign_interfaces(class_net: Path) -> list[str]:
    """Return the hardware interfaces of a /sys/class/net that are not in the agent's network namespace.

    Names are not enough: a pod has another eth0.
    """
    files = _Files(float("inf"))
    foreign = []
    for name in files.names(class_net):
        if (class_net / name / "device").exists() and (address := files.text(class_net / name / "address")):
            # An interface that was moved or renamed meanwhile is not foreign.
            is_ours = is_of_device(name, address) or not (class_net / name).exists()
            foreign += [] if is_ours else [name]
    return foreign


class _Files:
    """Reads files until the deadline; those that exist and cannot be read are problems."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.problems: list[Diagnostic] = []

    def names(self, folder: Path | str) -> list[str]:
        self._check()
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - a name, not a Path, per entry
        except OSError as error:
            self._report(folder, error)
            return []

    def target(self, link: str) -> str | None:
        """Return the last component of a link's target."""
        try:
            return os.readlink(link).rpartition("/")[2] or None  # noqa: PTH115
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.problems.append(Diagnostic(link, "is not a link"))
            else:
                self._report(link, error)
            return None

    def is_link_into(self, link: str, folders: re.Pattern[str]) -> bool:
        """Return whether the path is a link whose target matches."""
        try:
            return folders.search(os.readlink(link)) is not None  # noqa: PTH115
        except OSError:  # the folder is read instead
            return False

    def text(self, path: Path | str) -> str:
        """Return a small file without surrounding white space; empty if it is missing."""
        return os.fsdecode(b"".join(self._pieces(path, 1)).strip(b"\0 \t\r\n"))

    def lines(self, path: str) -> Iterator[list[bytes]]:
        """Yield the fields of each line; names of interfaces have no white space, and may not be UTF-8."""
        for number, line in enumerate(self._pieces(path, None)):
            if number % 1024 == 0:
                self._check()
            yield line.split()

    def _pieces(self, path: Path | str, most: int | None) -> Iterator[bytes]:
        try:
            # Non-blocking: a damaged tree may contain a FIFO, which would block indefinitely.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    self.problems.append(Diagnostic(str(path), "is not a regular file"))
                    return
                count = 0
                while count != most:
                    piece = file.readline(_MAX_SMALL_FILE_BYTES) if most is None else file.read(_MAX_SMALL_FILE_BYTES)
                    if not piece:
                        return
                    count += 1
                    yield piece
        except OSError as error:
            self._report(path, error)

    def _report(self, path: Path | str, error: OSError) -> None:
        # A read of sysfs returns EINVAL for an attribute that the interface does not have.
        if error.errno not in _NOT_HERE:
            is_denied = error.errno in (errno.EACCES, errno.EPERM)
            hint = "run the agent as root, or allow its user to read it" if is_denied else None
            self.problems.append(Diagnostic(str(path), error.strerror or "cannot be read", hint))

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


class _Links:
    """The interfaces of a /sys/class/net, and which is on top of which."""

    def __init__(self, files: _Files, sysfs: Path) -> None:
        self._files = files
        # Not a Path: most of the time of a read would be spent on paths.
        self._class_net = class_net = f"{sysfs}/class/net"
        self._entries: dict[str, frozenset[str]] = {}
        self.names: set[str] = set()
        self.stack = Stack()
        self.masters: dict[str, str] = {}
        plain = []
        for name in files.names(class_net):
            if files.is_link_into(f"{class_net}/{name}", _OF_PCI_FUNCTION):
                plain.append(name)
                continue
            self._entries[name] = entries = frozenset(files.names(f"{class_net}/{name}"))
            # A file is not an interface.
            if entries or os.path.isdir(f"{class_net}/{name}"):  # noqa: PTH112
                self.names.add(name)
            for entry in entries:
                if entry.startswith("upper_"):
                    self.stack.add(entry.removeprefix("upper_"), name)
                elif entry.startswith("lower_"):
                    self.stack.add(name, entry.removeprefix("lower_"))
            if "master" in entries:
                self._add_master(name)
        self.names.update(plain)
        # Each relation has a link at both of its ends, and no interface of a PCI function is on top of another one:
        # masters that are hardware are those of Hyper-V (vmbus), virtio and DSA.
        for name in plain:
            if self.stack.has_upper(name):
                self._add_master(name)

    def _add_master(self, name: str) -> None:
        if master := self._files.target(f"{self._class_net}/{name}/master"):
            self.masters[name] = master
            self.stack.add(master, name)

    def owner(self, path: str) -> str | None:
        """Return the interface that a file belongs to; None if it is about all of them."""
        folder, _, rest = path.partition(f"{self._class_net}/")
        return rest.partition("/")[0] if not folder and rest else None

    def may_be_up(self, name: str) -> bool:
        """Return False for an interface that is switched off."""
        try:
            return bool(int(self._files.text(f"{self._class_net}/{name}/flags"), 16) & _IFF_UP)
        except ValueError:
            return True

    def kind(self, name: str) -> str | None:
        """Return the kind of a virtual interface, as far as sysfs shows it."""
        entries = self._entries.get(name)
        if entries is None:
            return None
        for entry, kind in (("bonding", "bond"), ("bridge", "bridge")):
            if entry in entries:
                return kind
        if "device" in entries or "uevent" not in entries:
            return None
        lines = self._files.text(f"{self._class_net}/{name}/uevent").splitlines()
        return next((line.removeprefix("DEVTYPE=") for line in lines if line.startswith("DEVTYPE=")), None)


class _RouteTables:
    """The routes and addresses that /proc/net shows; damaged lines are skipped."""

    def __init__(self, files: _Files, folder: Path, max_routes: int) -> None:
        self._files = files
        self._folder = folder
        self._left = max_routes
        self.is_full = False
        self.names: set[str] = set()
        self._routes: Routes[str] = Routes()
        self._connected: dict[int, dict[int, set[str]]] = {}
        """Interfaces by the prefix length and the network of their connected IPv4 routes."""
        self._local: set[ipaddress.IPv4Address] = set()
        self._broadcast: set[int] = set()
        self._on_loopback: set[int] = set()
        """Broadcast addresses of the networks of the loopback interface, whose addresses are all local."""
        for fields in self._lines("route"):
            self._ipv4(fields)
        for fields in self._lines("ipv6_route"):
            self._ipv6(fields)
        self._read_local_ipv4()

    def of(self, name: str) -> dict[str, Route]:
        """Return the routes of an interface by the field of `Interface`."""
        return self._routes.of(name)

    def addresses(self) -> dict[str, list[str]]:
        """Return the addresses of each interface in CIDR notation, without those of link-local scope."""
        found: dict[str, list[str]] = {}
        for fields in self._files.lines(f"{self._folder}/if_inet6"):
            try:
                raw, prefix, scope = bytes.fromhex(fields[0].decode()), int(fields[2], 16), int(fields[3], 16)
                address = ipaddress.IPv6Address(raw)
                name = os.fsdecode(fields[5])
            except (IndexError, ValueError):
                continue
            if not scope & _NARROW_SCOPES:
                found.setdefault(name, []).append(f"{address}/{prefix}")
        for ipv4 in self._local:
            for prefix, name in self._networks_of(ipv4):
                found.setdefault(name, []).append(f"{ipv4}/{prefix}")
        return found

    def _lines(self, name: str) -> Iterator[list[bytes]]:
        for fields in self._files.lines(f"{self._folder}/{name}"):
            if not self._left:
                self.is_full = True
                return
            self._left -= 1
            yield fields

    def _ipv4(self, fields: list[bytes]) -> None:
        """Read a line: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., numbers in hexadecimal."""
        try:
            destination, gateway, mask = (_ipv4_of(fields[column]) for column in (1, 2, 7))
            flags = int(fields[3], 16)
        except (IndexError, ValueError, OverflowError):
            return
        if not flags & _UP or flags & _REJECT:
            return
        name, prefix = os.fsdecode(fields[0]), int.from_bytes(mask, "big").bit_count()
        self.names.add(name)
        self._routes.add(name, destination, prefix, gateway if flags & _GATEWAY else None, MAIN_TABLE)
        if prefix and not flags & _GATEWAY:
            network = int.from_bytes(destination, "big")
            self._connected.setdefault(prefix, {}).setdefault(network, set()).add(name)

    def _ipv6(self, fields: list[bytes]) -> None:
        """Read a line: destination, its prefix length, ..., gateway, metric, ..., flags, interface."""
        try:
            destination, gateway = bytes.fromhex(fields[0].decode()), bytes.fromhex(fields[4].decode())
            prefix, flags = int(fields[1], 16), int(fields[8], 16)
            name = os.fsdecode(fields[9])
        except (IndexError, ValueError):
            return
        is_whole = len(destination) == len(gateway) == _IPV6_BYTES and 0 <= prefix <= 8 * _IPV6_BYTES
        if is_whole and flags & _UP and not flags & (_REJECT | _LOCAL | _ANYCAST):
            self.names.add(name)
            # The table is not shown.
            self._routes.add(name, destination, prefix, gateway if flags & _GATEWAY else None, None)

    def unplaced(self) -> ipaddress.IPv4Address | None:
        """Return an address whose network has no route in the main table, so that its interface is not known.

        Only such an address has a broadcast address: those of tunnels and of kube-proxy have no network (/32).
        """
        of_routes = {
            network | (1 << _IPV4_BITS - prefix) - 1
            for prefix, networks in self._connected.items()
            for network in networks
        }
        others = self._broadcast - of_routes - self._on_loopback
        unplaced = (one for one in self._local if not self._networks_of(one)) if others else ()
        return min((one for one in unplaced if _has_broadcast(int(one), others)), default=None)

    def _read_local_ipv4(self) -> None:
        """Read the host's addresses from fib_trie: each is a leaf "|-- 192.0.2.2" with "/32 host LOCAL" below it."""
        leaf, is_vrf = b"", False
        for fields in self._files.lines(f"{self._folder}/fib_trie"):
            if len(fields) <= 2 and fields[-1:] and fields[-1].endswith(b":"):
                is_vrf = fields[0] == b"Id"  # only members of a VRF have addresses in another table
            elif is_vrf:
                continue
            elif fields[:1] == [b"|--"]:
                leaf = b"".join(fields[1:2])
            elif fields and fields[0].startswith(b"/") and fields[2:3] in ([b"LOCAL"], [b"BROADCAST"]):
                try:
                    address, prefix = ipaddress.IPv4Address(leaf.decode()), int(fields[0][1:])
                except ValueError:
                    continue
                if address.is_loopback or address.is_link_local:
                    continue
                if fields[2] == b"BROADCAST":
                    self._broadcast.add(int(address))
                elif fields[1] == b"host" and prefix == _IPV4_BITS:
                    self._local.add(address)
                elif 0 <= prefix < _IPV4_BITS:
                    self._on_loopback.add(int(address) | (1 << _IPV4_BITS - prefix) - 1)

    def _networks_of(self, address: ipaddress.IPv4Address) -> list[tuple[int, str]]:
        """Return the interfaces of the narrowest connected network of an address: fib_trie does not name them."""
        for prefix in sorted(self._connected, reverse=True):
            network = int(address) >> (_IPV4_BITS - prefix) << (_IPV4_BITS - prefix)
            if names := self._connected[prefix].get(network):
                return [(prefix, name) for name in sorted(names)]
        return []


def _has_broadcast(address: int, among: set[int]) -> bool:
    return any(address | (1 << bits) - 1 in among for bits in range(2, _IPV4_BITS))


def _ipv4_of(field: bytes) -> bytes:
    """Return the address of a number that the kernel prints in the host's byte order."""
    return int(field, 16).to_bytes(4, sys.byteorder)
