"""Interfaces between network namespaces, over rtnetlink, by a process of its own that lives as long as one request.

setns(2) is about a whole thread, which is one more reason for a process. `python -m dra_agent.setup.rtnetlink` reads a
request from its standard input and prints the answer, both as JSON; the container's network namespace is a file that
it inherits.
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

DEADLINE = 15.0
"""Seconds for the whole process, of which a loaded host takes some; with PATIENCE before it, less than the hook's."""
_ETHERNET = len("02:fc:00:00:00:01")


class Present(msgspec.Struct, frozen=True):
    """The interface that a device has on the host now, as /sys shows it: the link that is moved has to be the same."""

    name: str
    hardware_address: str


class Move(msgspec.Struct, frozen=True, tag="move"):
    """Have an interface in a container's network, with all that it is to have there."""

    network: int
    """A descriptor of the namespace."""
    present: Present | None
    """None: /sys shows none of it."""
    pci_address: str
    hardware_address: str
    """Of the interface, as it was on the host last."""
    name: str
    """In the container."""
    addresses: tuple[str, ...]
    asked: bool
    """Whether the claim asks for these addresses; else they are those of the host."""
    routes: tuple[tuple[str, str | None], ...]
    """Destinations, and the gateway of those that have one."""
    state: Literal["unknown", "moved", "complete"]
    """What is known of it in this namespace: one that is complete there is left alone."""


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Give an interface of the host its addresses again."""

    name: str
    addresses: tuple[str, ...]


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of it."""

    state: Literal["moved", "there", "taken", "away"]
    """`taken`: another interface has the name there; `away`: it is neither on the host nor there."""
    refused: str = ""
    """What the kernel did not do, and why; the interface is where it was put until then."""


def ask(request: Move | Restore, deadline: float = DEADLINE) -> Done:
    """Run the process and give its answer; RetryableError where it fails or does not end in time."""
    files = (request.network,) if isinstance(request, Move) else ()
    todo = "see the kernel's log (dmesg); it is tried again"
    data = msgspec.json.encode(request)
    return netlink.ask("dra_agent.setup.rtnetlink", Done, deadline, todo=todo, given=data, files=files)


def move(request: Move) -> Done:
    """Do it; only ever called in the process of its own, as it leaves the host's network."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netns import setns

    name = request.name
    with IPRoute() as host:
        setns(request.network)  # sockets that are open stay with the network that they were made in
        with IPRoute() as inside:
            there = _links(inside).get(name)
            ours = _links(host).get(request.present.name) if request.present is not None else None
            if ours is None or request.present is None or not _is(ours, request, request.present.hardware_address):
                known = request.state != "unknown"
                if there is None or not (known or _is(there, request, request.hardware_address)):
                    return Done("away")
                if request.state == "complete":
                    return Done("there")
                return Done("there", _finish(inside, int(there["index"]), request))
            if there is not None:
                return Done("taken")
            try:
                # One request, so that there is no moment at which it is in there under another name.
                host.link("set", index=ours["index"], net_ns_fd=request.network, ifname=name)
            except NetlinkError as error:
                return Done("away", f"the interface cannot be moved: {os.strerror(error.code)}")
            # Its number is another one where the old one was taken.
            return Done("moved", _finish(inside, int(_links(inside)[name]["index"]), request))


def restore(request: Restore) -> Done:
    """Do it; in the host's network."""
    from pyroute2 import IPRoute

    with IPRoute() as host:
        link = _links(host).get(request.name)
        if link is None:
            return Done("away")
        for address in request.addresses:
            if why := _give(host, int(link["index"]), address):
                return Done("there", why)
    return Done("there")


def _finish(inside: IPRoute, index: int, request: Move) -> str:
    """Switch it on, which gives it its own routes, and give it addresses and others; says what cannot be."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        inside.link("set", index=index, state="up")
    except NetlinkError as error:
        return f"it cannot be switched on: {os.strerror(error.code)}"
    for number, address in enumerate(request.addresses):
        # Where a pod's network has no IPv6, an address that nobody asked for is none that is missed.
        why = _give(inside, index, address, unless=None if request.asked else errno.EACCES)
        if why:
            return f"interface.addresses[{number}]: {why}" if request.asked else why
    for number, (destination, gateway) in enumerate(request.routes):
        try:
            inside.route("replace", dst=destination, oif=index, **({"gateway": gateway} if gateway is not None else {}))
        except NetlinkError as error:
            way = f" by way of {gateway}" if gateway is not None else ""
            return f"interface.routes[{number}]: no route to {destination}{way}: {os.strerror(error.code)}"
    return ""


def _give(network: IPRoute, index: int, address: str, *, unless: int | None = None) -> str:
    from pyroute2.netlink.exceptions import NetlinkError

    given = ipaddress.ip_interface(address)
    try:
        network.addr("add", index=index, address=str(given.ip), prefixlen=given.network.prefixlen)
    except NetlinkError as error:
        if error.code not in (errno.EEXIST, unless):
            return f"it cannot have {address}: {os.strerror(error.code)}"
    return ""


def _links(network: IPRoute) -> dict[str, Any]:
    return {str(link.get_attr("IFLA_IFNAME")): link for link in network.get_links()}


def _is(link: Any, request: Move, hardware_address: str) -> bool:
    """Tell whether a link is the one: by the device behind it (Linux 5.14 says it), or by its hardware address."""
    # Of InfiniBand's 20 bytes pyroute2 gives the first 6, in which the number of a queue pair tells ports apart.
    same = str(link.get_attr("IFLA_ADDRESS")) == hardware_address[:_ETHERNET]
    return same or link.get_attr("IFLA_PARENT_DEV_NAME") == request.pci_address


def main() -> None:
    """Answer one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Move | Restore)
    done = move(request) if isinstance(request, Move) else restore(request)
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
