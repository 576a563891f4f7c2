"""Moves interfaces between network namespaces over rtnetlink, in a separate process for each request.

setns(2) applies to a whole thread, which is another reason for a process. `python -m dra_agent.device_setup.rtnetlink`
reads a request from its standard input and prints the result, both as JSON; the container's network namespace is an
inherited file descriptor.

Links are found by their index: a container can give one a name that is not text.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dra_agent import netlink
from dra_agent.claimable import kernel_network
from dra_agent.claimable.network import BUDGET_S, MAX_ROUTES
from dra_agent.claimable.use import host_use
from dra_agent.device_setup import ethtool, link_addresses, link_files
from dra_agent.device_setup.link import (
    ETHERNET_CHARACTERS,
    FLAGS,
    Link,
    NotRestorableError,
    alias_of,
    altnames_of,
    master_of,
    name_of,
    numbers_of,
    raw,
    set_reported_up,
    shown,
    xdp_of,
)
from dra_agent.device_setup.link_reset import LinkReset

if TYPE_CHECKING:
    from pyroute2 import IPRoute

TIMEOUT_S = 15.0
"""Maximum seconds for the process, with its start on a loaded host; with RETURN_TIMEOUT_S less than the hook has."""
_HELD_STATES = ("TESTING", "DORMANT")
"""States that IFLA_OPERSTATE can set, and that remain until the carrier changes."""


class HostInterface(msgspec.Struct, frozen=True):
    """The interface of a device on the host, as /sys shows it: the link that is moved must be the same."""

    index: int
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
    mtu: int | None
    """None: that of the host."""
    addresses: tuple[str, ...]
    asked: bool
    """Whether the claim sets these addresses; otherwise they are those of the host."""
    routes: tuple[tuple[str, str | None], ...]
    """Destinations, and the gateway of those that have one."""
    may_have_address: bool
    """Whether the host may have an address on it."""
    state: Literal["unknown", "moved", "complete"]
    """Its known state in this namespace: a fully configured interface is not changed."""


class RestoreRequest(msgspec.Struct, frozen=True, tag="restore"):
    """Request to restore addresses and settings of an interface of the host after Reset."""

    interface: HostInterface
    name: str
    folder: str
    """The folder with all interfaces, /sys/class/net."""
    addresses: tuple[str, ...]
    link: Link


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Request to read the properties of an interface of the host."""

    interface: HostInterface
    name: str
    folder: str
    """See RestoreRequest."""


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Request to restore an interface, its name, MTU and state, and to remove programs that are not the host's."""

    interface: HostInterface
    name: str
    """The name on the host."""
    mtu: int
    up: bool
    link: Link


class NetResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a request."""

    state: Literal["moved", "there", "taken", "away"]
    """`taken`: another interface has the name there; `away`: it is neither on the host nor there."""
    refused: str = ""
    """The step that was rejected, and why; the interface stays where it was moved to."""
    changed: tuple[str, ...] = ()
    """Properties that were changed, as text."""
    differing: tuple[str, ...] = ()
    """Properties that could not be restored, or cannot be compared, and why."""
    missing: tuple[str, ...] = ()
    """Routes that the kernel no longer accepts, and why; they keep no claim."""
    link: Link | None = None
    mtu_range: tuple[int, int] | None = None
    """Minimum and maximum bytes that the driver accepts; a maximum of 0 is unknown."""


Request = MoveRequest | RestoreRequest | Describe | Reset


def query(request: Request) -> NetResult:
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
        present = _links(host).get(request.present.index) if request.present is not None else None
        if request.present is None or not (present and _is(present, request, request.present.hardware_address)):
            present = None
        # The host may have come to use it since prepare; read in the host's namespace.
        why = _in_use(present, may_have_address=request.may_have_address) if present is not None else ""
        setns(request.network)  # open sockets stay in the namespace in which they were created
        with netlink.connect() as inside:
            there = _named(inside, name)
            if present is None:
                known = request.state != "unknown"
                if there is None or not (known or _is(there, request, request.hardware_address)):
                    return NetResult("away")
                if request.state == "complete":
                    return NetResult("there")
                return NetResult("there", _finish(inside, int(there["index"]), request))
            if why:
                return NetResult("away", why)
            if there is not None:
                return NetResult("taken")
            try:
                # One request, so it never has another name there.
                host.link("set", index=present["index"], net_ns_fd=request.network, ifname=name)
            except NetlinkError as error:
                return NetResult("away", f"the interface cannot be moved: {os.strerror(error.code)}")
            # Its index changes if the old one is in use.
            return NetResult("moved", _finish(inside, int(_named(inside, name)["index"]), request))


def restore(request: RestoreRequest) -> NetResult:
    """Process the request in the host's network namespace."""
    changed: list[str] = []
    differing: list[str] = []
    missing: list[str] = []
    with netlink.connect() as host:
        found = _at(host, request.interface)
        if found is None:
            return NetResult("away")
        index = int(found["index"])
        link = request.link
        folder = Path(request.folder) / request.name
        # Before and after the settings of ethtool: a queue has files only if its channel exists, and some drivers
        # have NAPI contexts only with GRO.
        changed += link_files.restore(folder, link.files)[0]
        parts = [ethtool.restore(index, link.ethtool)] if link.ethtool is not None else []
        if link.steering is not None:
            from dra_agent.device_setup import steering

            parts.append(steering.restore(index, link.steering))
        parts.append(link_files.restore(folder, link.files))
        parts.append(link_files.restore_sysctls(request.name, link.sysctls))
        for done, left in parts:
            changed += done
            differing += left
        if link.addresses is not None:
            restored = link_addresses.restore(index, link.addresses, link.routes)
            changed += restored.added
            differing += restored.failed
            missing = restored.missing
        for address in request.addresses if link.addresses is None else ():
            if why := _add_address(host, index, address):
                return NetResult("there", why, tuple(changed), tuple(differing))
        if "IFLA_LINKMODE" in link.numbers:
            _leave_held_state(host, request.interface)
    return NetResult("there", "", tuple(changed), tuple(differing), tuple(missing))


def describe(request: Describe) -> NetResult:
    """Process the request in the host's network namespace."""
    with netlink.connect() as host:
        links = _links(host)
        found = _same(links, request.interface)
        if found is None:
            return NetResult("away")
        from dra_agent.device_setup import bpf, steering  # use ctypes, which the agent's own process does not load

        index = int(found["index"])
        try:
            link = Link(
                request.interface.hardware_address,
                int(found["flags"]) & FLAGS,
                numbers_of(found),
                alias_of(found),
                tuple(altnames_of(found)),
                tuple(xdp_of(found).values()),
                bpf.tcx_programs(index),
                master_of(found, links),
                ethtool.read(index),
                steering.read(index),
                link_files.read(Path(request.folder) / request.name),
                link_files.read_sysctls(request.name),
                *link_addresses.read(index),
            )
        except NotRestorableError as error:
            return NetResult("there", str(error))
        smallest, largest = (int(found.get_attr(name) or 0) for name in ("IFLA_MIN_MTU", "IFLA_MAX_MTU"))
    return NetResult("there", link=link, mtu_range=(smallest, largest))


def reset(request: Reset) -> NetResult:
    """Process the request in the host's network namespace."""
    with netlink.connect() as host:
        links = _links(host)
        found = _same(links, request.interface)
        if found is None:
            return NetResult("away")
        if (master := master_of(found, links)).index:
            return NetResult("there", f"the host uses it: it is a port of {shown(master.name)}")
        link = LinkReset(host, int(found["index"]), request.link)
        refused = link.remove_programs(found) or link.set_hardware_address(found) or link.set_flags(found)
        if not refused:
            link.set_others(found)
        refused = (
            refused or link.rename(found, request.name) or link.set_mtu_and_state(found, request.mtu, up=request.up)
        )
        return NetResult("there", refused, tuple(link.changed), tuple(link.differing))


def _finish(inside: IPRoute, index: int, request: MoveRequest) -> str:
    """Set the MTU, and the link up, which creates its own routes, then add addresses and routes; return what fails."""
    from pyroute2.netlink.exceptions import NetlinkError

    if request.mtu is not None:
        try:
            inside.link("set", index=index, mtu=request.mtu)
        except NetlinkError as error:
            return f"interface.mtu: it does not accept {request.mtu}: {os.strerror(error.code)}; request another MTU"
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


def _in_use(link: Any, *, may_have_address: bool) -> str:
    """Return how the host uses a link of this network namespace, if it must not be moved, otherwise ""."""
    try:
        view = kernel_network.read(time.monotonic() + BUDGET_S, MAX_ROUTES)
    except OSError as error:
        return f"it is not known whether the host uses it: {error.strerror}"
    use = host_use(view, os.fsdecode(raw(name_of(link))))
    if use is None or (use.code == "host-address" and may_have_address):
        return ""
    return f"the host uses it: {use.reason}"


def _leave_held_state(host: IPRoute, interface: HostInterface) -> None:
    """Report the link as up again if a container set another state; the kernel rejects that without a carrier."""
    found = _at(host, interface)
    if found is None or found.get_attr("IFLA_OPERSTATE") not in _HELD_STATES or not found.get_attr("IFLA_CARRIER"):
        return
    set_reported_up(int(found["index"]))


def _add_address(network: IPRoute, index: int, address: str, *, unless: int | None = None) -> str:
    from pyroute2.netlink.exceptions import NetlinkError

    given = ipaddress.ip_interface(address)
    try:
        network.addr("add", index=index, address=str(given.ip), prefixlen=given.network.prefixlen)
    except NetlinkError as error:
        if error.code not in (errno.EEXIST, unless):
            return f"it does not accept {address}: {os.strerror(error.code)}"
    return ""


def _links(network: IPRoute) -> dict[int, Any]:
    return {int(link["index"]): link for link in netlink.dump(network.get_links)}


def _named(network: IPRoute, name: str) -> Any:
    return next((link for link in _links(network).values() if name_of(link) == name), None)


def _at(host: IPRoute, interface: HostInterface) -> Any:
    return _same(_links(host), interface)


def _same(links: dict[int, Any], interface: HostInterface) -> Any:
    """Return the link that /sys shows as this interface; None if it is another one, as on a simulated host."""
    found = links.get(interface.index)
    is_same = found is not None and _has_address(found, interface.hardware_address)
    return found if is_same else None


def _has_address(link: Any, hardware_address: str) -> bool:
    # pyroute2 returns the first 6 of InfiniBand's 20 bytes, in which the queue pair number distinguishes ports.
    return str(link.get_attr("IFLA_ADDRESS")) == hardware_address[:ETHERNET_CHARACTERS]


def _is(link: Any, request: MoveRequest, hardware_address: str) -> bool:
    """Return whether a link is the interface: by its device (reported since Linux 5.14), or by its hardware address."""
    return _has_address(link, hardware_address) or link.get_attr("IFLA_PARENT_DEV_NAME") == request.pci_address


def main() -> None:
    """Process one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)  # noqa: TID251 - the child's request, from the agent
    if isinstance(request, MoveRequest):
        done = move(request)
    elif isinstance(request, RestoreRequest):
        done = restore(request)
    else:
        done = describe(request) if isinstance(request, Describe) else reset(request)
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
