"""Answers of the kernel over rtnetlink: complete, incomplete, damaged and late."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claimable.fake_kernel import (
    DONE,
    END,
    ERROR,
    GETADDR,
    GETLINK,
    GETNEXTHOP,
    GETROUTE,
    INTERRUPTED,
    MULTI,
    Answer,
    FakeKernel,
    address,
    attribute,
    link,
    message,
    nexthop,
    number,
    route,
)
from dra_agent.claimable import kernel_network
from dra_agent.claimable.network_view import NetworkView, Route
from dra_agent.claimable.use import host_use
from eventually import DEADLINE_S

ENO1, ENO2, BOND0 = 2, 3, 4
LINKS = link(1, "lo") + link(ENO1, "eno1") + link(ENO2, "eno2", master=BOND0) + link(BOND0, "bond0", kind="bond")
DESTINATION, OUT, GATEWAY, MULTIPATH, TABLE, VIA, NEXTHOP = 1, 4, 5, 9, 15, 18, 30
TEN = attribute(DESTINATION, bytes([10, 20, 0, 0]))
V6 = attribute(DESTINATION, socket.inet_pton(socket.AF_INET6, "2001:db8::"))


def gateway(last: int) -> bytes:
    return attribute(GATEWAY, bytes([10, 20, 3, last]))


def out(index: int) -> bytes:
    return attribute(OUT, number(index))


def read(max_routes: int = 100_000) -> NetworkView:
    return kernel_network.read(time.monotonic() + DEADLINE_S, max_routes)


def routes_of(monkeypatch: pytest.MonkeyPatch, *routes: bytes, nexthops: bytes = b"") -> dict[str, Route | None]:
    """Return the gateway or default route of each interface that has one."""
    FakeKernel({GETLINK: [LINKS + END], GETROUTE: [*routes, END], GETNEXTHOP: [nexthops + END]}).install(monkeypatch)
    found = {name: one.default_route or one.gateway_route for name, one in read().interfaces.items()}
    return {name: one for name, one in found.items() if one is not None}


def test_a_view_has_links_addresses_and_what_is_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    vlan = link(5, "bond0.7", kind="vlan", below=BOND0) + link(6, "self", below=6) + link(7, "v0", kind="veth", below=8)
    found = [address(ENO1, "10.1.2.3", 24), address(ENO1, "fe80::1", 64, scope=253), address(5, "2001:db8::7", 64)]
    FakeKernel({GETLINK: [LINKS, vlan + link(8, "v1", kind="veth", below=7), END], GETADDR: [*found, END]}).install(
        monkeypatch
    )
    view = read()
    assert view.incomplete is None
    assert view.interfaces["eno1"].addresses == ("10.1.2.3/24",)
    assert view.interfaces["eno2"].master == "bond0" and not view.interfaces["eno2"].uppers
    bond = view.interfaces["bond0"]
    assert (bond.kind, bond.uppers) == ("bond", ("bond0.7",))
    for alone in ("self", "v0", "v1"):
        assert not view.interfaces[alone].uppers


def test_a_lower_device_in_another_namespace_is_not_the_one_of_that_number_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower, netns = attribute(5, number(ENO1)), attribute(37, number(0))
    macvlan = struct.pack("=BxHiII", 0, 1, 9, 0, 0) + attribute(3, b"mv0\0") + lower
    for body, is_here in ((macvlan, True), (macvlan + netns, False)):
        FakeKernel({GETLINK: [LINKS + message(16, body) + END]}).install(monkeypatch)
        assert (read().interfaces["eno1"].uppers == ("mv0",)) == is_here


def test_messages_of_other_types_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    others = message(NOOP) + address(ENO1, "10.1.2.3", 24)
    FakeKernel({GETLINK: [others + LINKS + END]}).install(monkeypatch)
    assert set(read().interfaces) == {"lo", "eno1", "eno2", "bond0"}


def test_an_address_of_a_point_to_point_link_is_this_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = attribute(1, bytes([10, 9, 9, 9])) + attribute(2, bytes([10, 1, 2, 3]))
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, ENO1) + ends
    FakeKernel({GETLINK: [LINKS + END], GETADDR: [message(20, body) + END]}).install(monkeypatch)
    assert read().interfaces["eno1"].addresses == ("10.1.2.3/32",)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([route(2, 0, gateway(1), out(ENO1))], {"eno1": Route("default", "10.20.3.1")}),
        ([route(2, 0, out(ENO1))], {"eno1": Route("default")}),
        ([route(2, 16, TEN, gateway(1), out(ENO1), table=100)], {"eno1": Route("10.20.0.0/16", "10.20.3.1", 100)}),
        (
            [route(2, 16, TEN, gateway(1), out(ENO1), attribute(TABLE, number(70000)), table=252)],
            {"eno1": Route("10.20.0.0/16", "10.20.3.1", 70000)},
        ),
        (
            [route(2, 16, TEN, out(ENO1), attribute(VIA, struct.pack("=H", 10) + bytes(15) + b"\x07"))],
            {"eno1": Route("10.20.0.0/16", "::7")},
        ),
        (
            [
                route(
                    2,
                    0,
                    attribute(
                        MULTIPATH,
                        struct.pack("=HBBi", 16, 0, 0, ENO1) + gateway(1) + struct.pack("=HBBi", 8, 0, 0, BOND0),
                    ),
                )
            ],
            {"eno1": Route("default", "10.20.3.1"), "bond0": Route("default")},
        ),
        ([route(2, 16, TEN, gateway(1), out(99))], {}),
        ([route(2, 16, TEN, gateway(1), out(ENO1), table=255)], {}),
        ([route(2, 16, TEN, gateway(1), out(ENO1), flags=0x200)], {}),
        ([route(2, 16, TEN, gateway(1), out(ENO1), kind=kind) for kind in (2, 3, 5, 6, 7, 8, 9)], {}),
        ([route(28, 20, gateway(1), out(ENO1))], {}),
        # Of several, one that does not depend on the order: of the main table, the lowest.
        (
            [
                route(2, 16, attribute(DESTINATION, bytes([9, 0, 0, 0])), gateway(9), out(ENO1), table=100),
                route(2, 24, attribute(DESTINATION, bytes([10, 30, 0, 0])), gateway(3), out(ENO1)),
                route(2, 16, TEN, gateway(2), out(ENO1)),
                route(2, 16, TEN, gateway(1), out(ENO1)),
            ],
            {"eno1": Route("10.20.0.0/16", "10.20.3.1")},
        ),
    ],
)
def test_routes_to_other_networks_are_found(
    monkeypatch: pytest.MonkeyPatch, messages: list[bytes], expected: dict[str, Route]
) -> None:
    assert routes_of(monkeypatch, *messages) == expected
    assert routes_of(monkeypatch, *reversed(messages)) == expected


def test_routes_by_nexthop_objects_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = nexthop(attribute(1, number(7)), out_of_nexthop(ENO1), attribute(6, bytes([10, 20, 3, 1])))
    second = nexthop(attribute(1, number(8)), out_of_nexthop(BOND0))
    group = nexthop(attribute(1, number(9)), attribute(2, struct.pack("=IBBHIBBH", 7, 0, 0, 0, 8, 0, 0, 0)))
    blackhole = nexthop(attribute(1, number(10)), attribute(4, b""))
    loop = nexthop(attribute(1, number(11)), attribute(2, struct.pack("=IBBH", 11, 0, 0, 0)))

    def by(nexthop_number: int) -> dict[str, Route | None]:
        message_ = route(2, 0, attribute(NEXTHOP, number(nexthop_number)))
        return routes_of(monkeypatch, message_, nexthops=group + first + second + blackhole + loop)

    assert by(7) == {"eno1": Route("default", "10.20.3.1")}
    assert by(9) == {"eno1": Route("default", "10.20.3.1"), "bond0": Route("default")}
    assert by(10) == by(11) == by(99) == {}


def out_of_nexthop(index: int) -> bytes:
    return attribute(5, number(index))


def test_nexthop_objects_are_read_only_for_routes_that_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = route(2, 0, attribute(NEXTHOP, number(7)), out(ENO1))
    kernel = FakeKernel({GETLINK: [LINKS + END], GETROUTE: [complete + END]}).install(monkeypatch)
    assert read().interfaces["eno1"].default_route == Route("default")
    assert GETNEXTHOP not in kernel.requests


@pytest.mark.parametrize(
    ("destination", "prefix", "expected"),
    [
        ("10.1.2.0", 24, "10.1.2.0/24"),
        ("169.254.0.0", 16, None),
        ("169.254.0.0", 15, "169.254.0.0/15"),
        ("224.0.0.0", 4, None),
        ("239.1.2.3", 32, None),
        ("128.0.0.0", 1, "128.0.0.0/1"),
        ("fe80::", 64, None),
        ("febf::", 16, None),
        ("fec0::", 10, "fec0::/10"),
        ("ff00::", 8, None),
        ("ff02::1", 128, None),
        ("2001:db8::", 32, "2001:db8::/32"),
    ],
)
def test_link_local_and_multicast_destinations_do_not_count(
    monkeypatch: pytest.MonkeyPatch, destination: str, prefix: int, expected: str | None
) -> None:
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    raw = attribute(DESTINATION, socket.inet_pton(family, destination))
    FakeKernel({GETLINK: [LINKS + END], GETROUTE: lambda _: [route(family, prefix, raw, out(ENO1)) + END]}).install(
        monkeypatch
    )
    connected = read().interfaces["eno1"].connected_route
    assert (connected and connected.destination) == expected


def test_a_name_that_is_not_utf8_does_not_break_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"e\xff\xfe1"
    FakeKernel({GETLINK: [LINKS + link(9, os.fsdecode(raw), master=BOND0) + END]}).install(monkeypatch)
    view = read()
    assert {os.fsencode(name) for name in view.interfaces} == {b"lo", b"eno1", b"eno2", b"bond0", raw}
    assert {name for name, one in view.interfaces.items() if one.master == "bond0"} == {os.fsdecode(raw), "eno2"}
    assert host_use(view, os.fsdecode(raw)) is not None and host_use(view, "eno1") is None


BUFFER_BYTES = 1 << 16
NOOP = 1

INCOMPLETE = {
    "failed in the middle": ([LINKS, message(DONE, struct.pack("=i", -errno.ENOBUFS))], errno.ENOBUFS),
    "refused": ([message(ERROR, struct.pack("=i", -errno.EPERM) + bytes(16))], errno.EPERM),
    "damaged": ([struct.pack("=IHHII", 4, 16, 0, 1, 0)], errno.EBADMSG),
    "longer than the datagram": ([LINKS[:-1]], errno.EBADMSG),
    # The part that fits is whole.
    "truncated": ([message(NOOP, bytes(BUFFER_BYTES - 16 - len(LINKS + END))) + LINKS + END + b"rest"], errno.EBADMSG),
    "without an end": ([LINKS], None),
}


@pytest.mark.parametrize(("datagrams", "error"), INCOMPLETE.values(), ids=INCOMPLETE)
@pytest.mark.parametrize("request_", [GETLINK, GETADDR, GETROUTE])
def test_an_incomplete_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, request_: int, datagrams: list[bytes], error: int | None
) -> None:
    FakeKernel({GETLINK: [LINKS + END]} | {request_: datagrams}).install(monkeypatch)
    with pytest.raises(TimeoutError if error is None else OSError) as failed:
        read()
    assert failed.value.errno == error


TOO_LONG = struct.pack("=HH", 400, 3)


@pytest.mark.parametrize(
    ("request_", "damaged_message"),
    [
        (GETLINK, message(16, bytes(16) + TOO_LONG)),
        (GETLINK, message(16, bytes(15))),
        (GETADDR, message(20, struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 1) + TOO_LONG)),
        (GETADDR, message(20, struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 1) + attribute(1, b"abc"))),
        (GETROUTE, route(2, 0, TOO_LONG)),
        (GETROUTE, route(2, 0, attribute(OUT, b"abc"))),
        (GETROUTE, route(2, 33, TEN, out(ENO1))),
        (GETROUTE, route(2, 16, out(ENO1))),
        (GETROUTE, route(2, 16, TEN, out(ENO1), attribute(GATEWAY, b"abc"))),
        (GETROUTE, route(2, 0, attribute(MULTIPATH, struct.pack("=HBBi", 80, 0, 0, ENO1)))),
    ],
)
def test_a_damaged_message_is_an_error(monkeypatch: pytest.MonkeyPatch, request_: int, damaged_message: bytes) -> None:
    FakeKernel({GETLINK: [LINKS + END]} | {request_: [damaged_message, END]}).install(monkeypatch)
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.EBADMSG))):
        read()


PARTS = {
    GETLINK: (link(99, "partly"), LINKS),
    GETADDR: (address(ENO1, "10.9.9.9", 24), address(ENO1, "10.1.2.3", 24)),
    GETROUTE: (route(2, 0, out(BOND0)), route(2, 0, out(ENO1))),
}


@pytest.mark.parametrize("request_", PARTS)
def test_a_dump_is_repeated_after_a_change_and_not_without_end(monkeypatch: pytest.MonkeyPatch, request_: int) -> None:
    partly, whole = PARTS[request_]

    def changing(changes: int) -> FakeKernel:
        def answer(tries: int) -> list[bytes]:
            return [partly, message(DONE, bytes(4), MULTI | INTERRUPTED)] if tries < changes else [whole, END]

        complete: dict[int, Answer] = {kind: [one, END] for kind, (_, one) in PARTS.items()}
        return FakeKernel(complete | {request_: answer}).install(monkeypatch)

    kernel = changing(4)
    view = read()
    assert set(view.interfaces) == {"lo", "eno1", "eno2", "bond0"}
    assert view.interfaces["eno1"].addresses == ("10.1.2.3/24",)
    assert view.interfaces["eno1"].default_route == Route("default")
    assert view.interfaces["bond0"].default_route is None
    # Routes are asked for once for each family.
    assert kernel.requests.count(request_) == 5 + (request_ == GETROUTE)
    kernel = changing(100)
    with pytest.raises(InterruptedError, match=re.escape(os.strerror(errno.EINTR))):
        read()
    assert kernel.requests.count(request_) == 5


def test_a_change_that_an_earlier_part_reports_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = bytearray(LINKS)
    struct.pack_into("=H", first, 6, MULTI | INTERRUPTED)

    def answer(tries: int) -> list[bytes]:
        return [LINKS if tries else bytes(first), END]

    kernel = FakeKernel({GETLINK: answer}).install(monkeypatch)
    assert "eno1" in read().interfaces
    assert kernel.requests.count(GETLINK) == 2


def test_nothing_is_asked_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel({GETLINK: [LINKS + END]}).install(monkeypatch)
    with pytest.raises(TimeoutError, match=re.escape(os.strerror(errno.ETIMEDOUT))):
        kernel_network.read(time.monotonic() - 1, 10)
    assert not kernel.requests


def test_a_host_with_more_routes_than_are_read_has_an_incomplete_view(monkeypatch: pytest.MonkeyPatch) -> None:
    part = b"".join(route(2, 32, attribute(DESTINATION, number(n)), gateway(1), out(ENO1)) for n in range(1, 501))
    FakeKernel({GETLINK: [LINKS + END], GETROUTE: [*[part] * 200, END]}).install(monkeypatch)
    assert read().incomplete is None
    view = read(99_999)
    assert view.incomplete == "the host has more than 99,999 routes"
    assert view.interfaces["eno1"].gateway_route is not None
    use = host_use(view, "eno2"), host_use(view, "lo")
    assert use[0] is not None and use[0].reason == "eno2 is a port of bond0"
    assert use[1] is not None and "more than 99,999 routes" in use[1].reason


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_the_limit_counts_the_routes_of_both_families(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    families = iter([route(2, 16, TEN, out(ENO1)), route(10, 32, V6, out(ENO1))])
    FakeKernel({GETLINK: [LINKS + END], GETROUTE: lambda _: [next(families) + END]}).install(monkeypatch)
    assert (read(limit).incomplete is None) == (limit == 2)


VALID = (
    link(ENO1, "eno1", kind="vlan", below=BOND0),
    address(ENO1, "10.1.2.3", 24),
    route(2, 16, TEN, gateway(1), out(ENO1)),
    route(2, 0, attribute(MULTIPATH, struct.pack("=HBBi", 16, 0, 0, ENO1) + gateway(1))),
    route(2, 0, attribute(NEXTHOP, number(7))),
    nexthop(attribute(1, number(7)), attribute(5, number(ENO1)), attribute(2, struct.pack("=IBBH", 7, 0, 0, 0))),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Messages with other bytes at some places, and an end."""
    raw = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=3))))
    for place, byte in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
        raw[place] = byte
    return bytes(raw) + END


@st.composite
def arbitrary(draw: st.DrawFn) -> bytes:
    """Messages with any body, and an end."""
    bodies = draw(st.lists(st.tuples(st.sampled_from([16, 20, 24, 104]), st.binary(max_size=60)), max_size=4))
    return b"".join(message(kind, body) for kind, body in bodies) + END


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.one_of(st.binary(max_size=80), damaged(), arbitrary()))
def test_any_answer_is_a_view_or_one_kind_of_error(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with monkeypatch.context() as patch:
        FakeKernel({key: [answer] for key in (GETADDR, GETROUTE, GETNEXTHOP)} | {GETLINK: [LINKS + END]}).install(patch)
        for _ in range(2):
            try:
                view = read()
            except OSError:
                pass
            else:
                for name in view.interfaces:
                    host_use(view, name)
            FakeKernel({key: [answer] for key in (GETLINK, GETADDR, GETROUTE, GETNEXTHOP)}).install(patch)
