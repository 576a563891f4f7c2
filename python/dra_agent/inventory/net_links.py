"""Network links and default routes of the running kernel over rtnetlink, read by a separate process.

As a child process of the agent, this module prints the result as JSON. Simulated hosts have no netlink; they are read
from their files.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import msgspec

from dra_agent import netlink

TIMEOUT_S = 10.0
"""Seconds for the whole process; a loaded host takes one to start it."""


class NetLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """One network interface."""

    name: str
    kind: str | None = None
    """The kind of a virtual link: "bond", "vlan", "bridge", "vxlan"; None for hardware."""
    lower: tuple[str, ...] = ()
    """The interfaces that carry its packets: a bond's members, a VLAN's parent."""


class LinkFacts(msgspec.Struct, frozen=True):
    """State of the host's network from rtnetlink."""

    links: tuple[NetLink, ...] = ()
    default_routes: tuple[str, ...] = ()
    """Interfaces that default routes of any table and family leave through."""


def query(deadline: float = TIMEOUT_S) -> LinkFacts:
    """Run the process and return its result; raises RetryableError if it fails or times out."""
    hint = "network interfaces are read from sysfs until it works"
    return netlink.query_subprocess("dra_agent.inventory.net_links", LinkFacts, deadline, hint=hint)


def read() -> LinkFacts:
    """Query the kernel; called in the child process only."""
    with netlink.connect() as ip:
        found = [(message["index"], message) for message in netlink.dump(ip.get_links)]
        routes = [route for family in (2, 10) for route in netlink.dump(partial(ip.get_default_routes, family=family))]
    names = {index: str(message.get_attr("IFLA_IFNAME")) for index, message in found}
    lower: dict[str, list[str]] = {name: [] for name in names.values()}
    kinds: dict[str, str] = {}
    for index, message in found:
        name = names[index]
        info: Any = message.get_attr("IFLA_LINKINFO")
        kind = info.get_attr("IFLA_INFO_KIND") if info is not None else None
        if kind is not None:
            kinds[name] = str(kind)
        master = names.get(message.get_attr("IFLA_MASTER") or 0)
        if master is not None:
            lower[master].append(name)
        # Set on hardware too, to itself; across network namespaces it is a number of the other one.
        parent = message.get_attr("IFLA_LINK")
        if parent in names and parent != index and message.get_attr("IFLA_LINK_NETNSID") is None:
            lower[name].append(names[parent])
    return LinkFacts(
        links=tuple(NetLink(name, kinds.get(name), tuple(sorted(lower[name]))) for name in sorted(lower)),
        default_routes=tuple(sorted({names[index] for route in routes for index in _exits(route) if index in names})),
    )


def _exits(route: Any) -> list[int]:
    hops = route.get_attr("RTA_MULTIPATH") or ()
    out = route.get_attr("RTA_OIF")
    return [*([out] if out is not None else []), *(hop["oif"] for hop in hops)]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(read()))
