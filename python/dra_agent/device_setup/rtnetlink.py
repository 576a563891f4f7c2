"""Moves interfaces between network namespaces over rtnetlink, in a separate process for each request.

setns(2) applies to a whole thread, which is another reason for a process. `python -m dra_agent.device_setup.rtnetlink`
reads a request from its standard input and prints the result, both as JSON; the container's network namespace is an
inherited file descriptor.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dra_agent import netlink

if TYPE_CHECKING:
    from pyroute2 import IPRoute

TIMEOUT_S = 15.0
"""Maximum seconds for the process, with its start on a loaded host; with RETURN_TIMEOUT_S less than the hook has."""
_ETHERNET = len("02:fc:00:00:00:01")
_FLAGS = 0x80 | 0x100 | 0x200 | 0x1000
"""IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI and IFF_MULTICAST (linux/if.h): configured flags, without reported ones."""
_NUMBERS = {
    "IFLA_TXQLEN": "txqlen",
    "IFLA_GROUP": "group",
    "IFLA_GSO_MAX_SIZE": "gso_max_size",
    "IFLA_GSO_MAX_SEGS": "gso_max_segs",
    "IFLA_GRO_MAX_SIZE": "gro_max_size",
}
"""Link attributes that can be changed with CAP_NET_ADMIN in its namespace, by their names in the kernel and pyroute2.
"""
_XDP_MODES = {"IFLA_XDP_SKB_PROG_ID": 1 << 1, "IFLA_XDP_DRV_PROG_ID": 1 << 2, "IFLA_XDP_HW_PROG_ID": 1 << 3}
"""With the flag of the mode (XDP_FLAGS_SKB_MODE and others, linux/if_link.h)."""


class HostInterface(msgspec.Struct, frozen=True):
    """The interface of a device on the host, as /sys shows it: the link that is moved must be the same."""

    name: str
    hardware_address: str


class MoveRequest(msgspec.Struct, frozen=True, tag="move"):
    """Request to move an interface into a container's network namespace and configure it."""

    network: int
    """A file descriptor of the namespace."""
    present: HostInterface | None
    """None: not in /sys."""
    pci_address: str
    hardware_address: str
    """Last name of the interface on the host."""
    name: str
    """Name in the container."""
    addresses: tuple[str, ...]
    asked: bool
    """Whether the claim sets these addresses; otherwise they are those of the host."""
    routes: tuple[tuple[str, str | None], ...]
    """Destinations, and the gateway of those that have one."""
    state: Literal["unknown", "moved", "complete"]
    """Its known state in this namespace: a fully configured interface is not changed."""


class RestoreRequest(msgspec.Struct, frozen=True, tag="restore"):
    """Request to restore the addresses of an interface of the host."""

    name: str
    addresses: tuple[str, ...]


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """Properties of an interface that a container with its namespace can change, and a move does not."""

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


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Request to read the properties of an interface of the host."""

    name: str
    hardware_address: str


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Request to restore a returned interface, and to remove programs that are not the host's."""

    name: str
    """The current name."""
    link: Link


class NetResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a request."""

    state: Literal["moved", "there", "taken", "away"]
    """`taken`: another interface has the name there; `away`: it is neither on the host nor there."""
    refused: str = ""
    """The step that the kernel rejected, and why; the interface stays where it was moved to."""
    changed: tuple[str, ...] = ()
    """Properties that were changed, as text."""
    doubts: tuple[str, ...] = ()
    """Properties that stay changed, or are unknown."""
    link: Link | None = None


def query(request: MoveRequest | RestoreRequest | Describe | Reset) -> NetResult:
    """Run the process and return its result; raises RetryableError if it fails or times out."""
    files = (request.network,) if isinstance(request, MoveRequest) else ()
    hint = "check the kernel log (dmesg); the agent retries"
    data = msgspec.json.encode(request)
    return netlink.query_subprocess(
        "dra_agent.device_setup.rtnetlink", NetResult, TIMEOUT_S, hint=hint, stdin=data, files=files
    )


def move(request: MoveRequest) -> NetResult:
    """Process the request; only in the separate process, because it leaves the host's network namespace."""
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netns import setns

    name = request.name
    with netlink.connect() as host:
        setns(request.network)  # open sockets stay in the namespace in which they were created
        with netlink.connect() as inside:
            there = _links(inside).get(name)
            present = _links(host).get(request.present.name) if request.present is not None else None
            if (
                present is None
                or request.present is None
                or not _is(present, request, request.present.hardware_address)
            ):
                known = request.state != "unknown"
                if there is None or not (known or _is(there, request, request.hardware_address)):
                    return NetResult("away")
                if request.state == "complete":
                    return NetResult("there")
                return NetResult("there", _finish(inside, int(there["index"]), request))
            if there is not None:
                return NetResult("taken")
            try:
                # One request, so it never has another name there.
                host.link("set", index=present["index"], net_ns_fd=request.network, ifname=name)
            except NetlinkError as error:
                return NetResult("away", f"the interface cannot be moved: {os.strerror(error.code)}")
            # Its index changes if the old one is in use.
            return NetResult("moved", _finish(inside, int(_links(inside)[name]["index"]), request))


def restore(request: RestoreRequest) -> NetResult:
    """Process the request in the host's network namespace."""
    with netlink.connect() as host:
        link = _links(host).get(request.name)
        if link is None:
            return NetResult("away")
        for address in request.addresses:
            if why := _add_address(host, int(link["index"]), address):
                return NetResult("there", why)
    return NetResult("there")


def describe(request: Describe) -> NetResult:
    """Process the request in the host's network namespace."""
    with netlink.connect() as host:
        found = _links(host).get(request.name)
        if found is None or str(found.get_attr("IFLA_ADDRESS")) != request.hardware_address[:_ETHERNET]:
            return NetResult("away")
        from dra_agent.device_setup import bpf  # uses ctypes, which the agent's own process does not load

        programs = bpf.tcx_programs(int(found["index"]))
        link = Link(
            request.hardware_address,
            int(found["flags"]) & _FLAGS,
            {name: int(value) for name in _NUMBERS if (value := found.get_attr(name)) is not None},
            _alias(found),
            tuple(_altnames(found)),
            tuple(_xdp(found).values()),
            programs,
        )
    return NetResult("there", link=link)


def reset(request: Reset) -> NetResult:
    """Process the request in the host's network namespace."""
    with netlink.connect() as host:
        found = _links(host).get(request.name)
        if found is None:
            return NetResult("away")
        cleaning = _Cleaning(host, int(found["index"]), request.link)
        refused = cleaning.remove_programs(found) or cleaning.set_hardware_address(found) or cleaning.set_flags(found)
        if not refused:
            cleaning.set_others(found)
        return NetResult("there", refused, tuple(cleaning.changed), tuple(cleaning.doubts))


class _Cleaning:
    def __init__(self, host: IPRoute, index: int, before: Link) -> None:
        self._host = host
        self._index = index
        self._before = before
        self.changed: list[str] = []
        self.doubts: list[str] = []

    def remove_programs(self, found: Any) -> str:
        from dra_agent.device_setup import bpf

        for mode, program in _xdp(found).items():
            if program in self._before.xdp:
                continue
            off = {"attrs": [("IFLA_XDP_FD", -1), ("IFLA_XDP_FLAGS", _XDP_MODES[mode])]}
            if why := self._set(IFLA_XDP=off):
                return _program_remains("an XDP program", program, why)
            self.changed.append(f"XDP program {program} removed")
        programs = bpf.tcx_programs(self._index)
        if programs is None or (programs and self._before.tcx is None):
            self.doubts.append("a tcx program of a pod may remain: bpf(2) is not permitted, or was not at prepare")
            return ""
        for program in programs:
            if program in (self._before.tcx or ()):
                continue
            if why := bpf.detach_tcx(self._index, program):
                return _program_remains("a tcx program", program, why)
            self.changed.append(f"tcx program {program} removed")
        return ""

    def set_hardware_address(self, found: Any) -> str:
        before, now = self._before.hardware_address, str(found.get_attr("IFLA_ADDRESS"))
        # The adapter determines the 20 bytes of InfiniBand.
        if len(before) != _ETHERNET or before == now:
            return ""
        if self._set(address=before):
            # Most adapters accept another address only while the link is down; the caller sets it up again.
            why = self._set(state="down") or self._set(address=before)
            if why:
                return f"its hardware address is {now} and cannot be restored to {before}: {why}"
        self.changed.append(f"hardware address {now} restored to {before}")
        return ""

    def set_flags(self, found: Any) -> str:
        before, now = self._before.flags, int(found["flags"]) & _FLAGS
        if before is None or before == now:
            return ""
        if why := self._set(flags=before, change=before ^ now):
            return f"its flags are {now:#x} and cannot be restored to {before:#x}: {why}"
        self.changed.append(f"flags {now:#x} restored to {before:#x}")
        return ""

    def set_others(self, found: Any) -> None:
        before = self._before
        for name, value in before.numbers.items():
            now = found.get_attr(name)
            if name in _NUMBERS and now is not None and int(now) != value:
                self._note(f"{_NUMBERS[name]} {now} restored to {value}", self._set(**{_NUMBERS[name]: value}))
        if before.alias is not None and before.alias != _alias(found):
            self._note("alias restored", self._set(IFLA_IFALIAS=before.alias))
        if before.altnames is None:
            return
        now_called = _altnames(found)
        # Remove altnames first: one may be the original name.
        for name in now_called:
            if name not in before.altnames:
                self._note(f"alternative name {name} removed", self._link("property_del", altname=name))
        for name in before.altnames:
            if name not in now_called:
                self._note(f"alternative name {name} restored", self._link("property_add", altname=name))

    def _note(self, message: str, why: str) -> None:
        if why:
            self.doubts.append(f"{message}: {why}")
        else:
            self.changed.append(message)

    def _set(self, **attributes: Any) -> str:
        return self._link("set", **attributes)

    def _link(self, command: str, **attributes: Any) -> str:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            self._host.link(command, index=self._index, **attributes)
        except NetlinkError as error:
            return os.strerror(error.code)
        return ""


def _program_remains(message: str, program: int, why: str) -> str:
    return f"{message} (id {program}) cannot be removed: {why}; a process holds it by a link, see `bpftool link`"


def _xdp(link: Any) -> dict[str, int]:
    found = link.get_attr("IFLA_XDP")
    if found is None:
        return {}
    return {mode: int(program) for mode in _XDP_MODES if (program := found.get_attr(mode))}


def _altnames(link: Any) -> list[str]:
    names = link.get_attr("IFLA_PROP_LIST")
    return [] if names is None else [str(name) for name in names.get_attrs("IFLA_ALT_IFNAME")]


def _alias(link: Any) -> str:
    return str(link.get_attr("IFLA_IFALIAS") or "")


def _finish(inside: IPRoute, index: int, request: MoveRequest) -> str:
    """Set the link up, which creates its own routes, then add addresses and routes; return what fails."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        inside.link("set", index=index, state="up")
    except NetlinkError as error:
        return f"it cannot be set up: {os.strerror(error.code)}"
    for number, address in enumerate(request.addresses):
        # If a pod's network has no IPv6, an address that the claim does not set may be missing.
        why = _add_address(inside, index, address, unless=None if request.asked else errno.EACCES)
        if why:
            return f"interface.addresses[{number}]: {why}" if request.asked else why
    for number, (destination, gateway) in enumerate(request.routes):
        try:
            inside.route("replace", dst=destination, oif=index, **({"gateway": gateway} if gateway is not None else {}))
        except NetlinkError as error:
            way = f" by way of {gateway}" if gateway is not None else ""
            return f"interface.routes[{number}]: no route to {destination}{way}: {os.strerror(error.code)}"
    return ""


def _add_address(network: IPRoute, index: int, address: str, *, unless: int | None = None) -> str:
    from pyroute2.netlink.exceptions import NetlinkError

    given = ipaddress.ip_interface(address)
    try:
        network.addr("add", index=index, address=str(given.ip), prefixlen=given.network.prefixlen)
    except NetlinkError as error:
        if error.code not in (errno.EEXIST, unless):
            return f"it does not accept {address}: {os.strerror(error.code)}"
    return ""


def _links(network: IPRoute) -> dict[str, Any]:
    return {str(link.get_attr("IFLA_IFNAME")): link for link in netlink.dump(network.get_links)}


def _is(link: Any, request: MoveRequest, hardware_address: str) -> bool:
    """Return whether a link is the interface: by its device (reported since Linux 5.14), or by its hardware address."""
    # pyroute2 returns the first 6 of InfiniBand's 20 bytes, in which the queue pair number distinguishes ports.
    same = str(link.get_attr("IFLA_ADDRESS")) == hardware_address[:_ETHERNET]
    return same or link.get_attr("IFLA_PARENT_DEV_NAME") == request.pci_address


def main() -> None:
    """Process one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=MoveRequest | RestoreRequest | Describe | Reset)  # noqa: TID251 - the child's request, from the agent
    if isinstance(request, MoveRequest):
        done = move(request)
    elif isinstance(request, RestoreRequest):
        done = restore(request)
    else:
        done = describe(request) if isinstance(request, Describe) else reset(request)
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
