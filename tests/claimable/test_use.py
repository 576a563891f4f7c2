"""Which interfaces the host uses, and the reason in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import pytest

from dra_agent.claimable.network_view import Interface, NetworkView, Route
from dra_agent.claimable.use import HostUse, host_use

DEFAULT = Route("default", "10.0.0.1")
GATEWAY = Route("10.20.0.0/16", "10.20.3.1", 100)
CONNECTED = Route("10.1.2.0/24")
ADDRESS = ("10.1.2.3/24",)

INTERFACE: Final = "host-interface"
ADDRESS_ONLY: Final = "host-address"


def eno1(**values: object) -> Interface:
    return msgspec.structs.replace(Interface("eno1"), **values)


def upper(name: str, kind: str | None = None, **values: object) -> Interface:
    return msgspec.structs.replace(Interface(name, kind), **values)


def port_of(master: Interface, *more: Interface) -> list[Interface]:
    return [eno1(master=master.name), master, *more]


def below(first: Interface, *more: Interface) -> list[Interface]:
    return [eno1(uppers=(first.name,)), first, *more]


CASES: Mapping[str, tuple[list[Interface], str | None, str]] = {
    # Nothing on it.
    "idle": ([eno1()], None, ""),
    "a bond's lower that is not this one": ([eno1(), upper("bond0", "bond"), upper("eno2", master="bond0")], None, ""),
    "another interface has the default route": ([eno1(), upper("eno2", default_route=DEFAULT)], None, ""),
    "on top of others": ([eno1(), upper("eno2", uppers=("eno1",), default_route=DEFAULT)], None, ""),
    "not in the view, because it is moved or renamed": (
        [upper("eno2", default_route=DEFAULT)],
        INTERFACE,
        "it is not known whether the host uses eno1: it is not among the interfaces of the host's network",
    ),
    # Routes.
    "default route": ([eno1(default_route=DEFAULT)], INTERFACE, "eno1 carries the default route via 10.0.0.1"),
    "default route without a gateway": (
        [eno1(default_route=Route("default"))],
        INTERFACE,
        "eno1 carries the default route",
    ),
    "default route of another table": (
        [eno1(default_route=Route("default", "10.0.0.1", 100))],
        INTERFACE,
        "eno1 carries the default route via 10.0.0.1 (table 100)",
    ),
    "default route of a file without tables": (
        [eno1(default_route=Route("default", "fe80::1", None))],
        INTERFACE,
        "eno1 carries the default route via fe80::1",
    ),
    "IPv6 default route": (
        [eno1(default_route=Route("default", "fe80::1"))],
        INTERFACE,
        "eno1 carries the default route via fe80::1",
    ),
    "route by a gateway": (
        [eno1(gateway_route=GATEWAY)],
        INTERFACE,
        "eno1 carries the route 10.20.0.0/16 via 10.20.3.1 (table 100)",
    ),
    "IPv6 route by a gateway": (
        [eno1(gateway_route=Route("2001:db8::/32", "fe80::1"))],
        INTERFACE,
        "eno1 carries the route 2001:db8::/32 via fe80::1",
    ),
    "IPv4 route by an IPv6 gateway": (
        [eno1(gateway_route=Route("10.20.0.0/16", "fe80::1"))],
        INTERFACE,
        "eno1 carries the route 10.20.0.0/16 via fe80::1",
    ),
    "default route and route by a gateway": (
        [eno1(default_route=DEFAULT, gateway_route=GATEWAY)],
        INTERFACE,
        "eno1 carries the default route via 10.0.0.1",
    ),
    "route by a gateway and an address": (
        [eno1(gateway_route=GATEWAY, addresses=ADDRESS, connected_route=CONNECTED)],
        INTERFACE,
        "eno1 carries the route 10.20.0.0/16 via 10.20.3.1 (table 100)",
    ),
    "route of its own and a master": (
        [eno1(master="vrf-a", gateway_route=GATEWAY), upper("vrf-a", "vrf")],
        INTERFACE,
        "eno1 carries the route 10.20.0.0/16 via 10.20.3.1 (table 100)",
    ),
    # Masters.
    "port of a bond": (port_of(upper("bond0", "bond")), INTERFACE, "eno1 is a port of bond0"),
    "port of a bridge": (port_of(upper("br0", "bridge")), INTERFACE, "eno1 is a port of br0"),
    "port of a team": (port_of(upper("team0", "team")), INTERFACE, "eno1 is a port of team0"),
    "port of an HSR ring": (port_of(upper("hsr0", "hsr")), INTERFACE, "eno1 is a port of hsr0"),
    "port of Open vSwitch": (
        port_of(upper("ovs-system", "openvswitch"), upper("br-ex", "openvswitch", default_route=DEFAULT)),
        INTERFACE,
        "eno1 is a port of Open vSwitch",
    ),
    "member of a VRF": (port_of(upper("blue", "vrf")), INTERFACE, "eno1 is a member of the VRF blue"),
    "Azure's virtual function below its network adapter": (
        port_of(upper("eth0", default_route=DEFAULT)),
        INTERFACE,
        "eno1 is a port of eth0, which carries the default route via 10.0.0.1",
    ),
    "master that is not known": ([eno1(master="bond7")], INTERFACE, "eno1 is a port of bond7"),
    "master and an address": (
        [eno1(master="bond0", addresses=ADDRESS), upper("bond0", "bond")],
        INTERFACE,
        "eno1 is a port of bond0",
    ),
    "port of a bond with an address": (
        port_of(upper("bond0", "bond", addresses=ADDRESS, connected_route=CONNECTED)),
        INTERFACE,
        "eno1 is a port of bond0",
    ),
    "port of the bond of the default route": (
        port_of(upper("bond0", "bond", default_route=DEFAULT)),
        INTERFACE,
        "eno1 is a port of bond0, which carries the default route via 10.0.0.1",
    ),
    "port of the bond of a route by a gateway": (
        port_of(upper("bond0", "bond", gateway_route=GATEWAY)),
        INTERFACE,
        "eno1 is a port of bond0, which carries the route 10.20.0.0/16 via 10.20.3.1 (table 100)",
    ),
    "member of a VRF with a default route": (
        port_of(upper("blue", "vrf", default_route=Route("default", None, 10))),
        INTERFACE,
        "eno1 is a member of the VRF blue, which carries the default route (table 10)",
    ),
    # Upper devices.
    "parent of a VLAN": (
        below(upper("eno1.7", "vlan")),
        INTERFACE,
        "eno1 is the lower device of vlan eno1.7",
    ),
    "parent of a VLAN with the default route": (
        below(upper("eno1.7", "vlan", default_route=DEFAULT)),
        INTERFACE,
        "eno1 is the lower device of vlan eno1.7, which carries the default route via 10.0.0.1",
    ),
    "parent of a macvlan": (below(upper("mv0", "macvlan")), INTERFACE, "eno1 is the lower device of macvlan mv0"),
    "parent of an ipvlan": (below(upper("iv0", "ipvlan")), INTERFACE, "eno1 is the lower device of ipvlan iv0"),
    "parent of a VXLAN": (below(upper("vx0", "vxlan")), INTERFACE, "eno1 is the lower device of vxlan vx0"),
    "parent of a device without a kind": (
        below(upper("ib0.8001")),
        INTERFACE,
        "eno1 is the lower device of the interface ib0.8001",
    ),
    "macvlan in another namespace": ([eno1(uppers=())], None, ""),
    "a master and an upper device": (
        [eno1(master="br0", uppers=("eno1.7",)), upper("br0", "bridge"), upper("eno1.7", "vlan")],
        INTERFACE,
        "eno1 is a port of br0",
    ),
    "a master, and an upper device with the default route": (
        [
            eno1(master="br0", uppers=("eno1.7",)),
            upper("br0", "bridge"),
            upper("eno1.7", "vlan", default_route=DEFAULT),
        ],
        INTERFACE,
        "eno1 is a port of br0, eno1.7 above it carries the default route via 10.0.0.1",
    ),
    # Chains.
    "bond, VLAN, bridge": (
        port_of(
            upper("bond0", "bond", uppers=("bond0.7",)),
            upper("bond0.7", "vlan", master="br7"),
            upper("br7", "bridge", default_route=DEFAULT),
        ),
        INTERFACE,
        "eno1 is a port of bond0, br7 above it carries the default route via 10.0.0.1",
    ),
    "VLAN of a bridge without routes": (
        below(upper("eno1.7", "vlan", master="br7"), upper("br7", "bridge")),
        INTERFACE,
        "eno1 is the lower device of vlan eno1.7",
    ),
    "the nearest route is named": (
        port_of(
            upper("bond0", "bond", uppers=("bond0.7",), gateway_route=GATEWAY),
            upper("bond0.7", "vlan", default_route=DEFAULT),
        ),
        INTERFACE,
        "eno1 is a port of bond0, which carries the route 10.20.0.0/16 via 10.20.3.1 (table 100)",
    ),
    "a loop with a route": (
        port_of(
            upper("bond0", "bond", uppers=("bond0.7",)),
            upper("bond0.7", "vlan", uppers=("bond0", "eno1", "br0")),
            upper("br0", "bridge", default_route=DEFAULT),
        ),
        INTERFACE,
        "eno1 is a port of bond0, br0 above it carries the default route via 10.0.0.1",
    ),
    "a loop without a route": (
        port_of(upper("bond0", "bond", master="eno1", uppers=("bond0",))),
        INTERFACE,
        "eno1 is a port of bond0",
    ),
    "its own master": ([eno1(master="eno1")], INTERFACE, "eno1 is a port of eno1"),
    # Addresses.
    "an address": ([eno1(addresses=ADDRESS)], ADDRESS_ONLY, "eno1 has the address 10.1.2.3/24"),
    "an address with its connected route": (
        [eno1(addresses=ADDRESS, connected_route=CONNECTED)],
        ADDRESS_ONLY,
        "eno1 has the address 10.1.2.3/24",
    ),
    "an IPv6 address": (
        [eno1(addresses=("2001:db8::7/64",))],
        ADDRESS_ONLY,
        "eno1 has the address 2001:db8::7/64",
    ),
    "several addresses": (
        [eno1(addresses=("10.1.2.3/24", "2001:db8::7/64"))],
        ADDRESS_ONLY,
        "eno1 has the address 10.1.2.3/24",
    ),
    "a route on the link without an address": (
        [eno1(connected_route=Route("10.30.0.0/16", None, 7))],
        ADDRESS_ONLY,
        "eno1 carries the route 10.30.0.0/16 (table 7)",
    ),
}


@pytest.mark.parametrize(("interfaces", "code", "reason"), CASES.values(), ids=CASES)
def test_a_use_has_a_code_and_a_reason(interfaces: list[Interface], code: str | None, reason: str) -> None:
    use = host_use(NetworkView({interface.name: interface for interface in interfaces}), "eno1")
    assert (use.code, use.reason) == (code, reason) if use is not None else code is None


@pytest.mark.parametrize(("interfaces", "code", "reason"), CASES.values(), ids=CASES)
def test_a_use_that_an_incomplete_view_shows_has_its_reason_and_others_are_not_known(
    interfaces: list[Interface], code: str | None, reason: str
) -> None:
    view = NetworkView({interface.name: interface for interface in interfaces}, "the host has more than 7 routes")
    use = host_use(view, "eno1")
    assert use is not None and use.code == INTERFACE
    unknown = "it is not known whether the host uses eno1: the host has more than 7 routes"
    assert use.reason == (reason if code == INTERFACE and "eno1" in view.interfaces else unknown)


def test_interfaces_that_a_late_view_lacks_are_not_known() -> None:
    view = NetworkView({"eno1": eno1(), "eno2": upper("eno2", addresses=ADDRESS)}, late="the kernel is late")
    assert host_use(view, "eno1") is None
    assert host_use(view, "eno2") == HostUse(ADDRESS_ONLY, "eno2 has the address 10.1.2.3/24")
    assert host_use(view, "eno3") == HostUse(
        INTERFACE, "it is not known whether the host uses eno3: the kernel is late"
    )


def test_a_name_that_is_not_utf8_is_shown_in_reasons_that_can_be_encoded() -> None:
    name, master = "e\udcff", "b\udcfe\x1b"
    view = NetworkView({name: Interface(name, master=master), master: Interface(master, "bond")})
    use = host_use(view, name)
    assert use is not None and use.reason == r"e\udcff is a port of b\udcfe\x1b"
    assert msgspec.json.decode(msgspec.json.encode(use), type=HostUse) == use
