"""What a pod changes on an interface and the host has back afterwards, property by property, on a real kernel."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deadlines import a_minute
from device_setup.moved_nic import (
    IN_POD,
    NET,
    ON_HOST,
    PEER,
    Nic,
    answered,
    described,
    in_network,
    ip,
    links,
    possible,
)
from dra_agent.device_setup.netlink_request import ROUTE, Connection, attribute, attributes
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare.setup import SetupOutcome
from eventually import eventually

pytestmark = pytest.mark.skipif(not possible(), reason="needs root, network namespaces, iproute2 and util-linux")


@pytest.fixture(autouse=True)
def every_test_has_time(no_haste: None) -> None:
    """A machine that runs many tests takes seconds to start a process."""


_SIOCETHTOOL = 0x8946
_GET_CHANNELS, _SET_CHANNELS = 0x3C, 0x3D
_GET_COALESCE, _SET_COALESCE = 0x0E, 0x0F
_RTM_SETLINK, _IFLA_OPERSTATE, _DORMANT = 19, 16, b"\x05"


def ethtool(name: str, request: bytes) -> bytes:
    """The request of ethtool(8) in this thread's network, without netlink."""
    import ctypes

    data = ctypes.create_string_buffer(request, len(request))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        ifreq = struct.pack("16sQ16x", name.encode(), ctypes.addressof(data))
        fcntl.ioctl(control, _SIOCETHTOOL, ifreq)
    return data.raw


def on_off(command: int) -> Callable[[str], Any]:
    """Return a reader of a setting that is a number."""
    return lambda name: struct.unpack("=II", ethtool(name, struct.pack("=II", command, 0)))[1]


def switch(command: int, value: int) -> Callable[[str, int], None]:
    """Return what a pod does to set it."""
    return lambda name, pod: _there(pod, lambda: ethtool(name, struct.pack("=II", command, value)))


def _there(pod: int, act: Callable[[], Any]) -> None:
    def run() -> None:
        with in_network(pod):
            act()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(60)


def words(*more: str) -> Callable[[str, int], None]:
    """Return what a pod does with ip(8)."""
    return lambda name, pod: void(ip("link", "set", "dev", name, *more, inside=pod))


def void(_: object) -> None:
    return None


def shown(key: str) -> Callable[[str], Any]:
    """Return a reader of what ip(8) shows."""
    return lambda name: described(os.getpid(), name).get(key)


def file(path: str) -> Callable[[str], Any]:
    """Return a reader of a file below the interface's folder."""
    return lambda name: (NET / name / path).read_text().strip()


def write(path: str, value: str) -> Callable[[str, int], None]:
    """Return what a privileged pod does, which may write in a /sys of its network."""

    def act(name: str, pod: int) -> None:
        script = f"mount -t sysfs sysfs /sys && echo {value} >/sys/class/net/{name}/{path}"
        command = ["nsenter", f"--net=/proc/{pod}/ns/net", "unshare", "--mount", "sh", "-c", script]
        subprocess.run(command, check=True)

    return act


def channels(name: str) -> Any:
    return struct.unpack("=9I", ethtool(name, struct.pack("=9I", _GET_CHANNELS, *[0] * 8)))[5:7]


def one_channel(name: str, pod: int) -> None:
    _there(pod, lambda: ethtool(name, struct.pack("=9I", _SET_CHANNELS, 0, 0, 0, 0, 1, 1, 0, 0)))


def two_channels(name: str, pod: int) -> None:
    _there(pod, lambda: ethtool(name, struct.pack("=9I", _SET_CHANNELS, 0, 0, 0, 0, 2, 2, 0, 0)))


def dormant(name: str, pod: int) -> None:
    def act() -> None:
        index = socket.if_nametoindex(name)
        with Connection(ROUTE) as kernel:
            kernel.request(
                _RTM_SETLINK, struct.pack("=BxHiII", 0, 0, index, 0, 0) + attribute(_IFLA_OPERSTATE, _DORMANT)
            )

    ip("link", "set", "dev", name, "mode", "dormant", inside=pod)
    _there(pod, act)


def ipv4_size(kind: int) -> Callable[[str], Any]:
    """Return a reader of an attribute that ip(8) of this host may not know."""

    def read(name: str) -> Any:
        with Connection(ROUTE) as kernel:
            (reply,) = kernel.request(18, struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0))
        return attributes(reply[16:]).get(kind)

    return read


def set_ipv4_size(kind: int) -> Callable[[str, int], None]:
    """Return what a pod does to set it."""

    def act(name: str) -> None:
        header = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
        with Connection(ROUTE) as kernel:
            kernel.request(_RTM_SETLINK, header + attribute(kind, struct.pack("=I", 3000 + kind)))

    return lambda name, pod: _there(pod, lambda: act(name))


SYSCTLS = {"ipv4/conf/{}/arp_ignore": 1, "ipv6/conf/{}/accept_ra": 0, "ipv4/neigh/{}/gc_stale_time": 77}


def sysctl(name: str) -> Any:
    """With an MTU below 1280 bytes there are none of IPv6."""
    paths = [Path(f"/proc/sys/net/{path.format(name)}") for path in SYSCTLS]
    return [path.read_text().strip() if path.exists() else None for path in paths]


def nothing(_: str, __: int) -> None:
    """The move itself changes it."""


class Property(NamedTuple):
    name: str
    read: Callable[[str], Any]
    change: Callable[[str, int], None]


PROPERTIES = [
    Property("hardware address", shown("address"), words("address", "02:00:00:00:00:99")),
    Property("MTU", shown("mtu"), words("mtu", "900")),
    Property("flags", shown("flags"), words("promisc", "on", "allmulticast", "on", "arp", "off")),
    Property("transmit queue length", shown("txqlen"), words("txqueuelen", "7")),
    Property("group", shown("group"), words("group", "7")),
    Property("alias", shown("ifalias"), words("alias", "mine")),
    Property("GSO size", shown("gso_max_size"), words("gso_max_size", "4000")),
    Property("GSO segments", shown("gso_max_segs"), words("gso_max_segs", "5")),
    Property("GRO size", shown("gro_max_size"), words("gro_max_size", "5000")),
    Property("GSO size of IPv4", ipv4_size(63), set_ipv4_size(63)),
    Property("GRO size of IPv4", ipv4_size(64), set_ipv4_size(64)),
    Property("link mode", shown("linkmode"), dormant),
    Property("offload: TSO", on_off(0x1E), switch(0x1F, 0)),
    Property("offload: GRO", on_off(0x2B), switch(0x2C, 1)),
    Property("offload: transmit checksums", on_off(0x16), switch(0x17, 0)),
    Property("channels", channels, one_channel),
    Property("gro_flush_timeout", file("gro_flush_timeout"), write("gro_flush_timeout", "20000")),
    Property("napi_defer_hard_irqs", file("napi_defer_hard_irqs"), write("napi_defer_hard_irqs", "3")),
    Property("threaded", file("threaded"), write("threaded", "1")),
    Property("rps_cpus", file("queues/rx-0/rps_cpus"), write("queues/rx-0/rps_cpus", "1")),
    Property("rps_flow_cnt", file("queues/rx-0/rps_flow_cnt"), write("queues/rx-0/rps_flow_cnt", "64")),
    Property("xps_cpus", file("queues/tx-0/xps_cpus"), write("queues/tx-0/xps_cpus", "1")),
    Property("xps_rxqs", file("queues/tx-0/xps_rxqs"), write("queues/tx-0/xps_rxqs", "1")),
    Property("sysctl settings", sysctl, nothing),
    Property("name", lambda name: name in links(os.getpid()), nothing),
]


SINCE_LINUX_6_3 = {"GSO size of IPv4", "GRO size of IPv4"}


def host_settings(nic: Nic) -> None:
    """What an operator has set, so that a default is not mistaken for a restored value."""
    ip("link", "set", nic.name, "alias", "the host's", "txqueuelen", "500")
    for path, value in (
        ("gro_flush_timeout", "1000"),
        ("queues/rx-1/rps_cpus", "2"),
        ("queues/rx-0/rps_flow_cnt", "32"),
    ):
        (NET / nic.name / path).write_text(f"{value}\n")
    for path, number in SYSCTLS.items():
        Path(f"/proc/sys/net/{path.format(nic.name)}").write_text(f"{number}\n")


@pytest.fixture
def wide_nic(the_nic: Nic) -> Nic:
    """With two queues in each direction."""
    ip("link", "delete", the_nic.name)
    queues = ("numtxqueues", "2", "numrxqueues", "2")
    ip("link", "add", ON_HOST, "address", the_nic.hardware, *queues, "type", "veth", "peer", "name", PEER, *queues)
    two_channels(ON_HOST, os.getpid())
    for name in (PEER, ON_HOST):
        ip("link", "set", name, "up")
    ip("address", "add", "192.0.2.7/24", "dev", ON_HOST)
    return the_nic


def moved(nic: Nic, pod: int, **interface: Any) -> SetupOutcome:
    outcome = nic.prepare(name=IN_POD, **interface)
    with answered(nic.agent):
        done = nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    return outcome


def test_every_property_that_a_pod_changes_comes_back(wide_nic: Nic, pod: int) -> None:
    host_settings(wide_nic)
    before = {one.name: value for one in PROPERTIES if (value := one.read(wide_nic.name)) is not None}
    assert {one.name for one in PROPERTIES} - before.keys() <= SINCE_LINUX_6_3
    present = [one for one in PROPERTIES if one.name in before]
    outcome = moved(wide_nic, pod, mtu=1400)
    for one in present:
        one.change(IN_POD, pod)
    wide_nic.come_back(pod)
    spoiled = {one.name: one.read(IN_POD) for one in present if one.name != "name"}
    kept = [name for name, value in spoiled.items() if value == before[name]]
    assert not kept, "the pod did not change them, or the kernel reset them"
    wide_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert {one.name: one.read(wide_nic.name) for one in present} == before
    assert (NET / wide_nic.name / "operstate").read_text().strip() == "up"


def test_the_kernel_removes_what_is_bound_to_the_network(the_nic: Nic, pod: int) -> None:
    """Neither recorded nor restored: nothing of it may be on the host when an interface returns."""
    outcome = moved(the_nic, pod)
    ip("neighbour", "add", "192.0.2.9", "lladdr", "02:00:00:00:00:09", "dev", IN_POD, "nud", "permanent", inside=pod)
    ip("link", "add", "link", IN_POD, "name", "upper0", "type", "macvlan", inside=pod)
    ip("route", "add", "203.0.113.0/24", "dev", IN_POD, inside=pod)
    nsenter = ["nsenter", f"--net=/proc/{pod}/ns/net"]
    subprocess.run([*nsenter, "bridge", "fdb", "add", "02:00:00:00:00:08", "dev", IN_POD, "self"], check=False)
    subprocess.run([*nsenter, "tc", "qdisc", "replace", "dev", IN_POD, "root", "pfifo"], check=True)
    ip("maddress", "add", "33:33:00:00:00:77", "dev", IN_POD, inside=pod)
    the_nic.come_back(pod)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert "02:00:00:00:00:09" not in ip("neighbour", "show", "dev", the_nic.name)
    assert "203.0.113.0" not in ip("route", "show", "table", "all")
    assert "upper0" not in links(os.getpid())
    assert "33:33:00:00:00:77" not in ip("maddress", "show", "dev", the_nic.name)
    assert described(os.getpid(), the_nic.name)["promiscuity"] == 0
    for command in (["bridge", "fdb", "show", "dev", the_nic.name], ["tc", "qdisc", "show", "dev", the_nic.name]):
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "02:00:00:00:00:08" not in found and "pfifo limit" not in found


def test_settings_of_the_driver_come_back(the_nic: Nic, pod: int) -> None:
    """A tap interface has coalescing and a message level, which a veth does not have."""
    ip("link", "delete", the_nic.name)
    ip("tuntap", "add", "dev", the_nic.name, "mode", "tap")
    ip("link", "set", the_nic.name, "address", the_nic.hardware)
    frames = struct.pack("=23I", _GET_COALESCE, *[0] * 22)

    def read() -> tuple[Any, ...]:
        return struct.unpack("=23I", ethtool(the_nic.name, frames))[2], on_off(0x07)(the_nic.name)

    before = read()
    outcome = moved(the_nic, pod)
    coalesce = struct.pack("=23I", _SET_COALESCE, 0, 32, *[0] * 20)
    _there(pod, lambda: ethtool(IN_POD, coalesce))
    switch(0x08, 7)(IN_POD, pod)
    the_nic.come_back(pod)
    assert struct.unpack("=23I", ethtool(IN_POD, frames))[2] == 32 and on_off(0x07)(IN_POD) == 7
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert read() == before


def test_a_nic_with_a_sysctl_setting_that_cannot_be_restored_keeps_its_claim(the_nic: Nic, pod: int) -> None:
    outcome = moved(the_nic, pod)
    note = the_nic.note()
    note["link"]["sysctls"]["ipv4/conf/of_the_host"] = "1"
    (the_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    the_nic.come_back(pod)
    agent = the_nic.new_agent()
    message = rf"{the_nic.name} differs from before the claim: ipv4/conf/of_the_host is missing, it was 1: No such file"
    for _ in range(2):
        with pytest.raises(RetryableError, match=message):
            agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert agent.noted("a") == ["nic-0"]


def test_a_nic_with_a_property_that_cannot_be_restored_keeps_its_claim(the_nic: Nic, pod: int) -> None:
    ip("link", "property", "add", "dev", the_nic.name, "altname", f"{the_nic.name}alt")
    outcome = moved(the_nic, pod)
    ip("link", "property", "del", "dev", IN_POD, "altname", f"{the_nic.name}alt", inside=pod)
    ip("link", "set", "dev", IN_POD, "mtu", "900", inside=pod)
    the_nic.come_back(pod)
    ip("link", "property", "add", "dev", the_nic.peer, "altname", f"{the_nic.name}alt")
    message = rf"{the_nic.name} differs from before the claim: alternative name \S+alt is not restored: File exists"
    for _ in range(2):
        with pytest.raises(RetryableError, match=message) as caught:
            the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
        assert "the claim keeps the NIC" in str(caught.value)
    assert described(os.getpid(), the_nic.name)["mtu"] == 1500, "all others are restored"
    ip("link", "property", "del", "dev", the_nic.peer, "altname", f"{the_nic.name}alt")
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert the_nic.agent.noted("a") == []


def test_a_setting_of_ethtool_that_cannot_be_restored_is_named(wide_nic: Nic, pod: int) -> None:
    outcome = moved(wide_nic, pod)
    one_channel(IN_POD, pod)
    wide_nic.come_back(pod)
    # The recorded number is more than the interface has, as after another driver has taken it over.
    note = wide_nic.note()
    four = struct.pack("=I", 4)
    note["link"]["ethtool"]["channels"] = {str(kind): _base64(four) for kind in (6, 7)}
    (wide_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    with pytest.raises(RetryableError, match=re.escape("channels (`ethtool -l`): Invalid argument")):
        wide_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert wide_nic.agent.noted("a") == ["nic-0"]


def test_a_value_that_the_driver_lets_nobody_set_does_not_keep_the_nic(the_nic: Nic, pod: int) -> None:
    """As the speed of a virtual function, which follows the adapter's."""
    outcome = moved(the_nic, pod)
    the_nic.come_back(pod)
    note = the_nic.note()
    assert note["link"]["ethtool"]["link modes"]["5"] == _base64(struct.pack("=I", 10000))
    note["link"]["ethtool"]["link modes"]["5"] = _base64(struct.pack("=I", 25000))
    (the_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert the_nic.agent.noted("a") == []


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode()


def test_after_a_restart_of_the_host_its_own_settings_stay(the_nic: Nic, pod: int) -> None:
    outcome = moved(the_nic, pod)
    the_nic.come_back(pod)
    note = the_nic.note()
    assert note["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note["boot_id"] = "11111111-2222-3333-4444-555555555555"
    (the_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    ip("link", "set", "dev", IN_POD, "name", the_nic.name, "txqueuelen", "321")
    before = described(os.getpid(), the_nic.name)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert described(os.getpid(), the_nic.name) == before


def test_addresses_come_back_with_their_settings_and_routes(the_nic: Nic, pod: int) -> None:
    """As the host's network manager has set them; it is not asked again."""
    name = the_nic.name
    for address in (
        ["10.7.7.7/24", "noprefixroute", "metric", "77"],
        ["10.8.8.8", "peer", "10.9.9.9/32"],
        ["10.1.2.3/24", "metric", "66"],
        ["10.1.2.4/24", "label", f"{name}:1"],
        ["2001:db8::7/64", "nodad", "noprefixroute"],
        ["2001:db8:1::7/64", "nodad", "metric", "55"],
    ):
        ip("address", "add", *address, "dev", name)
    for route in (
        ["10.30.0.0/16", "metric", "9"],
        ["10.7.7.0/24", "table", "100"],
        ["10.31.0.0/16", "src", "10.1.2.3"],
    ):
        ip("route", "add", *route, "dev", name)
    ip("-6", "route", "add", "2001:db8:9::/48", "dev", name)

    before = configured(name)
    move_and_restore(the_nic, pod)
    assert configured(name) == before


def configured(name: str) -> list[str]:
    """Return the addresses and routes of an interface as ip(8) shows them."""
    lines = ip("address", "show", "dev", name).replace(" tentative", "").splitlines()
    words = [line.strip() for line in lines[2:]]
    return sorted(words) + routes(name)


def routes(name: str) -> list[str]:
    """Return its routes in all tables, without those to itself: of an IPv6 address, one comes after its check."""
    found = [line for family in ("-4", "-6") for line in ip(family, "route", "show", "table", "all").splitlines()]
    return sorted(line.strip() for line in found if f"dev {name} " in f"{line} " and not line.startswith("local "))


def move_and_restore(nic: Nic, pod: int) -> None:
    outcome = moved(nic, pod)
    nic.come_back(pod)
    nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())


def test_prefix_routes_of_a_network_manager_come_back(the_nic: Nic, pod: int) -> None:
    """NetworkManager has the kernel make none (`noprefixroute`), and adds its own as the kernel's, with a metric."""
    name = the_nic.name
    prefixes = {"10.7.7.7/24": "10.7.7.0/24", "2001:db8::7/64": "2001:db8::/64"}
    for address, prefix in prefixes.items():
        ip("address", "add", address, "dev", name, "noprefixroute")
        source = ["scope", "link", "src", address.partition("/")[0]] if "." in address else []
        ip("route", "add", prefix, "dev", name, "proto", "kernel", *source, "metric", "101")
    before = configured(name)
    assert sum("proto kernel" in line and "metric 101" in line for line in before) == 2
    move_and_restore(the_nic, pod)
    assert configured(name) == before


def test_prefix_routes_of_addresses_that_expire_do_not_come_back(the_nic: Nic, pod: int) -> None:
    """The DHCP client adds both again."""
    name = the_nic.name
    before = configured(name)
    ip("address", "add", "10.7.7.7/24", "dev", name, "noprefixroute", "valid_lft", "600", "preferred_lft", "600")
    source = ["scope", "link", "src", "10.7.7.7"]
    ip("route", "add", "10.7.7.0/24", "dev", name, "proto", "kernel", *source, "metric", "101")
    ip("address", "add", "10.8.8.8/24", "dev", name, "valid_lft", "600", "preferred_lft", "600")
    move_and_restore(the_nic, pod)
    assert configured(name) == before


@contextmanager
def next_hop(name: str) -> Iterator[str]:
    """Yield a nexthop object of the interface, as routing daemons use them; skips if the kernel has none."""
    number = str(os.getpid())
    if not ip("nexthop", "add", "id", number, "dev", name, check=False) and number not in ip("nexthop", "show"):
        pytest.skip("this kernel has no nexthop objects")
    try:
        yield number
    finally:
        ip("nexthop", "delete", "id", number, check=False)


@pytest.mark.parametrize("readded", [False, True])
def test_a_route_over_a_nexthop_object_comes_back(the_nic: Nic, pod: int, readded: bool) -> None:
    """The kernel removes the object with the interface; the daemon that made it may add both again by then."""
    name, route = the_nic.name, ["10.40.0.0/16", "proto", "static"]
    with next_hop(name) as number:
        ip("route", "add", *route, "nhid", number)
        outcome = moved(the_nic, pod)
        the_nic.come_back(pod)
        if readded:
            ip("link", "set", "dev", IN_POD, "up")
            ip("nexthop", "add", "id", number, "dev", IN_POD)
            ip("route", "add", *route, "nhid", number)
        the_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
        found = [line for line in routes(name) if line.startswith("10.40.0.0/16")]
    assert len(found) == 1 and f"dev {name} " in found[0]


def test_a_route_comes_back_whose_source_the_kernel_checks_first(the_nic: Nic, pod: int) -> None:
    """It refuses the route until no other host has claimed the IPv6 address, for a second or two."""
    name, route = the_nic.name, ["2001:db8:5::/64", "src", "2001:db8::7"]
    ip("address", "add", "2001:db8::7/64", "dev", name)
    eventually(lambda: "tentative" not in ip("address", "show", "dev", name), "the address is not in use")
    ip("-6", "route", "add", *route, "dev", name)
    before = configured(name)
    move_and_restore(the_nic, pod)
    assert configured(name) == before


def test_a_route_that_cannot_come_back_does_not_keep_the_nic(
    the_nic: Nic, pod: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its source is an address that the host has removed since, or another interface has the destination by now."""
    name, source = the_nic.name, "198.18.99.99"
    ip("address", "add", f"{source}/32", "dev", the_nic.peer)
    ip("route", "add", "10.41.0.0/16", "dev", name, "src", source)
    ip("route", "add", "10.42.0.0/16", "dev", name)
    ip("route", "add", "10.43.0.0/16", "dev", name)
    outcome = moved(the_nic, pod)
    ip("address", "delete", f"{source}/32", "dev", the_nic.peer)
    ip("route", "add", "10.43.0.0/16", "dev", the_nic.peer)
    the_nic.come_back(pod)
    agent = the_nic.new_agent()
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    found = routes(name)
    assert not any(line.startswith(("10.41", "10.43")) for line in found)
    assert any(line.startswith("10.42.0.0/16") for line in found) and agent.noted("a") == []
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    shown = "route 10.41.0.0/16 is not restored: Invalid argument; route 10.43.0.0/16 is not restored: File exists"
    assert vars(warning)["missing"] == shown


@pytest.mark.parametrize(
    ("command", "what"), [("route add {} dev {} table 7321", "routes"), ("address add {} dev {}", "addresses")]
)
def test_an_interface_with_more_than_can_be_restored_is_not_prepared(
    the_nic: Nic, tmp_path: Path, command: str, what: str
) -> None:
    """Each one would be read back and added again while the release of the claim waits."""
    ip("address", "flush", "dev", the_nic.name)
    batch = tmp_path / "batch"
    hosts = [f"198.18.{number >> 8}.{number & 255}/32" for number in range(1025)]
    batch.write_text("".join(f"{command.format(one, the_nic.name)}\n" for one in hosts))
    ip("-batch", str(batch))
    refusal = f"^device nic-0: interface.name: {the_nic.name}: it has 1,025 {what}, and at most 1,024 can be restored"
    with pytest.raises(RetryableError, match=refusal):
        the_nic.prepare(name=IN_POD)
    assert not (the_nic.root / "state/net/nic-0.json").exists()
    ip(*command.format(hosts[0], the_nic.name).replace(" add ", " delete ").split())
    the_nic.prepare(name=IN_POD)


def test_one_of_several_next_hops_is_not_prepared(the_nic: Nic) -> None:
    """The kernel keeps the route with the other one, and refuses to add it again."""
    name, destination = the_nic.name, "10.44.0.0/16"
    ip("route", "add", destination, "nexthop", "dev", the_nic.peer, "nexthop", "dev", name)
    refusal = f"^device nic-0: interface.name: {name}: it is one of the next hops of the route {destination}, "
    with pytest.raises(RetryableError, match=refusal):
        the_nic.prepare(name=IN_POD)
    assert not (the_nic.root / "state/net/nic-0.json").exists()
    ip("route", "delete", destination)
    the_nic.prepare(name=IN_POD)


def test_an_mtu_is_that_of_the_pod_only(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD, mtu=1400)
    assert described(os.getpid(), the_nic.name)["mtu"] == 1500
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    assert links(pod)[IN_POD]["mtu"] == 1400
    the_nic.come_back(pod)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert described(os.getpid(), the_nic.name)["mtu"] == 1500


def test_an_mtu_that_the_adapter_does_not_support_is_refused_at_prepare(the_nic: Nic) -> None:
    ip("link", "delete", the_nic.name)
    ip("tuntap", "add", "dev", the_nic.name, "mode", "tap")
    ip("link", "set", the_nic.name, "address", the_nic.hardware)
    with pytest.raises(PermanentError, match=f"interface.mtu: {the_nic.name} does not accept 65535: Invalid argument"):
        the_nic.prepare(name=IN_POD, mtu=65535)
    assert the_nic.agent.noted("a") == []


OTHER = f"dra{os.getpid()}r"


def add_link(*more: str) -> None:
    """Add an interface of the host; skips if the kernel has no such kind."""
    done = subprocess.run(["ip", "link", "add", *more], capture_output=True, text=True, check=False)
    if "Unknown device type" in done.stderr or "Operation not supported" in done.stderr:
        pytest.skip(f"this kernel has no {more[-1]}")
    assert done.returncode == 0, done.stderr


def test_a_port_is_neither_prepared_nor_moved(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    assert the_nic.note()["link"]["master"] == {"index": 0, "name": ""}
    add_link(OTHER, "type", "bridge")
    try:
        ip("link", "set", the_nic.name, "master", OTHER)
        with answered(the_nic.agent):
            done = the_nic.hook(outcome, pod)
        assert done.returncode == 1 and f"the host uses it: {the_nic.name} is a port of {OTHER}\n" in done.stderr
        assert described(os.getpid(), the_nic.name)["master"] == OTHER
        the_nic.agent.roll_back("a", ["nic-0"], None, a_minute())  # type: ignore[arg-type]
        assert described(os.getpid(), the_nic.name)["master"] == OTHER
        for interface in ({"name": IN_POD}, {"mtu": 1400}):
            with pytest.raises(RetryableError, match=f"the host uses it: {the_nic.name} is a port of {OTHER};"):
                the_nic.prepare(**interface)
        assert described(os.getpid(), the_nic.name)["mtu"] == 1500 and the_nic.agent.noted("a") == []
    finally:
        ip("link", "delete", OTHER)


def test_a_returned_interface_that_the_host_has_made_a_port_is_not_changed(the_nic: Nic, pod: int) -> None:
    outcome = moved(the_nic, pod)
    ip("link", "set", "dev", IN_POD, "mtu", "900", inside=pod)
    the_nic.come_back(pod)
    add_link(OTHER, "type", "bridge")
    try:
        ip("link", "set", IN_POD, "master", OTHER, "mtu", "1300")
        before = described(os.getpid(), IN_POD)
        with pytest.raises(RetryableError, match=f"{the_nic.name}: the host uses it: it is a port of {OTHER};"):
            the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
        assert described(os.getpid(), IN_POD) == before and the_nic.agent.noted("a") == ["nic-0"]
    finally:
        ip("link", "delete", OTHER)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert described(os.getpid(), the_nic.name)["mtu"] == 1500


def test_an_interface_below_another_one_is_neither_prepared_nor_moved(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    add_link("link", the_nic.name, "name", OTHER, "type", "macvlan")
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert done.returncode == 1 and f"{the_nic.name} is the lower device of macvlan {OTHER}\n" in done.stderr
    assert (NET / OTHER).exists() and (NET / the_nic.name).exists()
    the_nic.agent.roll_back("a", ["nic-0"], None, a_minute())  # type: ignore[arg-type]
    with pytest.raises(RetryableError, match=f"{the_nic.name} is the lower device of the interface {OTHER};"):
        the_nic.prepare(name=IN_POD)
    ip("link", "delete", OTHER)
    the_nic.prepare(name=IN_POD)


def test_a_claim_that_an_earlier_agent_prepared_is_moved_and_restored(the_nic: Nic, pod: int) -> None:
    """It set the MTU on the host, and recorded fewer properties."""
    outcome = the_nic.prepare(name=IN_POD, mtu=1400)
    ip("link", "set", the_nic.name, "mtu", "1400")
    note = the_nic.note()
    del note["port"]
    for name in ("master", "ethtool", "files", "sysctls", "boot_id"):
        note["link"].pop(name, None)
    for name in ("IFLA_LINKMODE", "IFLA_GSO_IPV4_MAX_SIZE", "IFLA_GRO_IPV4_MAX_SIZE"):
        note["link"]["numbers"].pop(name, None)
    (the_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    agent = the_nic.new_agent()
    with answered(agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    assert links(pod)[IN_POD]["mtu"] == 1400
    ip("link", "set", "dev", IN_POD, "txqueuelen", "7", inside=pod)
    the_nic.come_back(pod)
    the_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    host = described(os.getpid(), the_nic.name)
    assert (host["mtu"], host["txqlen"]) == (1500, 1000) and agent.noted("a") == []


def test_a_pod_with_interfaces_whose_names_are_not_text_gets_another_one(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    add: list[str | bytes] = ["nsenter", f"--net=/proc/{pod}/ns/net", "ip", "link", "add"]
    add += [b"\xff\xfe", "type", "veth", "peer", "name", b"\xfe"]
    subprocess.run(add, check=True)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
