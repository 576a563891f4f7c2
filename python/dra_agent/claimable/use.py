"""Whether the host uses a network interface itself, and for what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from dra_agent.claimable.network_view import MAIN_TABLE, Interface, NetworkView, Route
from dra_agent.printable import printable


class HostUse(msgspec.Struct, frozen=True):
    """A use of an interface by the host."""

    code: Literal["host-interface", "host-address"]
    """host-interface: the host's traffic passes it, or another interface is built on it, or that is not known.

    host-address: it has an address or destinations on its own link only.
    """
    reason: str
    """A sentence without its period: "eno1 is a port of bond0"."""


MISSING = "it is not among the interfaces of the host's network"
"""Why the use of an interface is not known that a view lacks."""


def host_use(view: NetworkView, interface: str) -> HostUse | None:
    """Return the most important use of an interface by the host; None if there is none.

    Not known is a use: an interface of an incomplete view, without a use that the view shows, and one that the view
    lacks. It was moved or renamed meanwhile.
    """
    found = view.interfaces.get(interface)
    use = None if found is None else _use(view, found)
    if use is not None and use.code == "host-interface":
        return use
    unknown = view.incomplete or (view.late or MISSING if found is None else found.unknown)
    if unknown is not None:
        return HostUse("host-interface", f"it is not known whether the host uses {_shown(interface)}: {unknown}")
    return use


def rail_route(view: NetworkView, interface: str) -> Route | None:
    """Return the route for which alone the host uses an interface, if it may be that of a rail in a routed fabric.

    A default route of the main table is that of the host's uplink, and one whose table is not shown may be.
    """
    found = view.interfaces.get(interface)
    if found is None or found.master is not None or found.uppers:
        return None
    if found.default_route is not None and found.default_route.table in (None, MAIN_TABLE):
        return None
    return _forwarding(found)


def _use(view: NetworkView, interface: Interface) -> HostUse | None:
    if route := _forwarding(interface):
        return HostUse("host-interface", f"{_shown(interface.name)} carries {route}")
    if relation := _relation(view, interface):
        return HostUse("host-interface", f"{_shown(interface.name)} {relation}{_traffic_above(view, interface)}")
    if interface.addresses:
        return HostUse("host-address", f"{_shown(interface.name)} has the address {interface.addresses[0]}")
    if interface.connected_route is not None:
        return HostUse("host-address", f"{_shown(interface.name)} carries {interface.connected_route}")
    return None


def _forwarding(interface: Interface) -> Route | None:
    return interface.default_route or interface.gateway_route


def _relation(view: NetworkView, interface: Interface) -> str | None:
    """Return what is directly on top of an interface, in words."""
    if interface.master is not None:
        master, kind = _shown(interface.master), _kind(view, interface.master)
        if kind == "vrf":
            return f"is a member of the VRF {master}"
        return f"is a port of {'Open vSwitch' if kind == 'openvswitch' else master}"
    if interface.uppers:
        upper = interface.uppers[0]
        return f"is the lower device of {_kind(view, upper) or 'the interface'} {_shown(upper)}"
    return None


def _traffic_above(view: NetworkView, interface: Interface) -> str:
    """Return which interface above sends the host's traffic through this one, in words; empty if none does."""
    first = interface.master or interface.uppers[0]
    for upper in _above(view, interface):
        route = _forwarding(upper)
        if route is not None:
            return f", {'which' if upper.name == first else _shown(upper.name) + ' above it'} carries {route}"
    return ""


def _above(view: NetworkView, interface: Interface) -> Iterator[Interface]:
    """Yield all interfaces above one, the nearest first; each once, also where they form a loop."""
    seen, waiting = {interface.name}, [interface]
    for lower in waiting:
        for name in filter(None, (lower.master, *lower.uppers)):
            upper = view.interfaces.get(name)
            if upper is not None and name not in seen:
                seen.add(name)
                waiting.append(upper)
                yield upper


def _kind(view: NetworkView, name: str) -> str | None:
    interface = view.interfaces.get(name)
    return None if interface is None else interface.kind


def _shown(name: str) -> str:
    return printable(name, line=True)
