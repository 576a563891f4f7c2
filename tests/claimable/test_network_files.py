"""A host's network from sysfs and the tables of /proc/net, as simulated and recorded hosts have them."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_agent.claimable import network_files
from dra_agent.claimable.network_view import NetworkView, Route
from dra_agent.claimable.use import HostUse, host_use
from dra_agent.host import Host
from eventually import DEADLINE_S

Write = Callable[[str, object], None]
HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
ZERO = "0" * 32
ROUTER = "fe80" + "0" * 27 + "1"
FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.1.2.0/24 2 0 2
        |-- 10.1.2.0
           /24 link UNICAST
        |-- 10.1.2.3
           /32 host LOCAL
        |-- 10.1.2.255
           /32 link BROADCAST
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 169.254.7.7
        /32 host LOCAL
     |-- 192.0.2.9
        /32 host LOCAL
"""


def read(host: Host, max_routes: int = 1000) -> NetworkView:
    return network_files.read(host.sysfs, host.proc / "net", time.monotonic() + DEADLINE_S, max_routes)


def ipv4(name: str, to: str, prefix: int, gateway: str = "0.0.0.0", flags: int = 1) -> str:
    def number(address: str) -> str:
        return f"{int.from_bytes(socket.inet_aton(address), 'little'):08X}"

    mask = (0xFFFFFFFF << (32 - prefix)) & 0xFFFFFFFF
    shown = number(socket.inet_ntoa(mask.to_bytes(4, "big")))
    return f"{name}\t{number(to)}\t{number(gateway)}\t{flags:04X}\t0\t0\t0\t{shown}\t0\t0\t0"


def ipv6(name: str, to: str, prefix: int, gateway: str = ZERO, flags: int = 1) -> str:
    raw = socket.inet_pton(socket.AF_INET6, to).hex()
    return f"{raw} {prefix:02x} {ZERO} 00 {gateway} 00000400 00000001 00000000 {flags:08x} {name:>8}"


def test_masters_and_upper_devices_are_found_by_any_of_their_links(host: Host, write: Write) -> None:
    net = host.sysfs / "class/net"
    write("sys/class/net/bonding_masters", "bond0")
    for name in ("eno1", "eno2", "bond0", "vlan7", "mv0"):
        write(f"sys/class/net/{name}/flags", "0x1003")
    (net / "eno1/master").symlink_to("../bond0")
    (net / "eno2/upper_mv0").symlink_to("../mv0")
    (net / "vlan7/lower_bond0").symlink_to("../bond0")
    write("sys/class/net/bond0/bonding/mode", "802.3ad 4")
    write("sys/class/net/vlan7/uevent", "DEVTYPE=vlan\nINTERFACE=vlan7")
    view = read(host)
    assert set(view.interfaces) == {"eno1", "eno2", "bond0", "vlan7", "mv0"}
    uses = {name: use.reason for name in view.interfaces if (use := host_use(view, name))}
    assert uses == {
        "eno1": "eno1 is a port of bond0",
        "eno2": "eno2 is the lower device of the interface mv0",
        "bond0": "bond0 is the lower device of vlan vlan7",
    }
    bond = view.interfaces["bond0"]
    assert (bond.kind, bond.uppers) == ("bond", ("vlan7",))


def test_of_hardware_the_links_of_the_other_end_are_enough(host: Host, write: Write) -> None:
    """The kernel makes one at both ends. Hardware can be a port of hardware, as Azure's virtual functions are."""
    net, virtual = host.sysfs / "class/net", host.sysfs / "devices/virtual/net"
    for name in ("lo", "bond0", "eno1.7"):
        write(f"sys/devices/virtual/net/{name}/mtu", "1500")
        (net / name).symlink_to(f"../../devices/virtual/net/{name}")
    places = {
        "eno1": "pci0000:00/0000:01:00.0",
        "eno2": "pci0000:00/0000:02:00.0",
        "eno3": "pci0000:00/0000:02:00.1",
        "eth0": "LNXSYSTM:00/VMBUS:00/f8615163",
        "enP1s0": "pci0001:00/0001:00:02.0",
        "eth1": "pci0000:00/0000:03:00.0",
        "lan1": "pci0000:00/0000:03:00.0/mdio_bus/0000:03:00.0/0000:03:00.0:1e",
    }
    for name, place in places.items():
        write(f"sys/devices/{place}/net/{name}/mtu", "1500")
        (net / name).symlink_to(f"../../devices/{place}/net/{name}")
    write("sys/class/net/bonding_masters", "bond0")
    (virtual / "eno1.7/lower_eno1").symlink_to("../../../eno1/net/eno1")
    for name in ("eno2", "eno3"):
        (virtual / f"bond0/lower_{name}").symlink_to(name)
    (net / "eno3/master").symlink_to("../bond0")
    # Hyper-V: a virtual function is a port of the interface that it replaces.
    (net / "enP1s0/master").symlink_to("../eth0")
    (net / "eth0/lower_enP1s0").symlink_to("../enP1s0")
    # DSA: the ports of a switch on the MDIO bus of a NIC, without a master.
    (net / "lan1/lower_eth1").symlink_to("../eth1")
    (net / "eth1/upper_lan1").symlink_to("../lan1")
    view = read(host)
    assert view.problems == () and set(view.interfaces) == {"lo", "bond0", "eno1.7", *places}
    uses = {name: use.reason for name in view.interfaces if (use := host_use(view, name))}
    assert uses == {
        "eno1": "eno1 is the lower device of the interface eno1.7",
        "eno2": "eno2 is the lower device of the interface bond0",
        "eno3": "eno3 is a port of bond0",
        "eth1": "eth1 is the lower device of the interface lan1",
        "enP1s0": "enP1s0 is a port of eth0",
    }


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        (ipv4("eno1", "0.0.0.0", 0, "10.0.0.1", 3), "host-interface", "eno1 carries the default route via 10.0.0.1"),
        (ipv4("eno1", "0.0.0.0", 0), "host-interface", "eno1 carries the default route"),
        (
            ipv4("eno1", "10.20.0.0", 16, "10.20.3.1", 3),
            "host-interface",
            "eno1 carries the route 10.20.0.0/16 via 10.20.3.1",
        ),
        (ipv4("eno1", "10.30.0.0", 16), "host-address", "eno1 carries the route 10.30.0.0/16"),
        (ipv4("eno1", "10.20.0.0", 16, "10.20.3.1", 2), None, ""),
        (ipv4("eno1", "10.20.0.0", 16, flags=0x201), None, ""),
        (ipv4("eno1", "169.254.0.0", 16), None, ""),
        (ipv4("eno1", "224.0.0.0", 4), None, ""),
        ("eno1\tzz\tzz\tzz\tzz\tzz\tzz\tzz\tzz", None, ""),
        ("eno1\t-1\t0\t1\t0\t0\t0\t0", None, ""),
        ("eno1\t0", None, ""),
    ],
)
def test_ipv4_routes_of_the_table_count(host: Host, write: Write, line: str, code: str | None, reason: str) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    write("proc/net/route", f"{HEADER}\n{line}")
    use = host_use(read(host), "eno1")
    assert (use.code, use.reason) == (code, reason) if use is not None else code is None


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        (ipv6("eno1", "::", 0, ROUTER, 0x450003), "host-interface", "eno1 carries the default route via fe80::1"),
        (
            ipv6("eno1", "2001:db8::", 32, ROUTER, 3),
            "host-interface",
            "eno1 carries the route 2001:db8::/32 via fe80::1",
        ),
        (ipv6("eno1", "2001:db8:1::", 64), "host-address", "eno1 carries the route 2001:db8:1::/64"),
        (ipv6("eno1", "fe80::", 64), None, ""),
        (ipv6("eno1", "ff00::", 8), None, ""),
        (ipv6("eno1", "2001:db8:1::7", 128, flags=0x80200001), None, ""),
        (ipv6("eno1", "2001:db8:1::", 128, flags=0x100001), None, ""),
        (ipv6("lo", "::", 0, flags=0x200201), None, ""),
        (ipv6("eno1", "::", 0, flags=0x200), None, ""),
        (ipv6("eno1", "::", 0x91, ROUTER, 3), None, ""),
        ("00 00 00", None, ""),
        ("nonsense " * 10, None, ""),
    ],
)
def test_ipv6_routes_of_the_table_count(host: Host, write: Write, line: str, code: str | None, reason: str) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    write("proc/net/ipv6_route", line)
    use = host_use(read(host), "eno1")
    assert (use.code, use.reason) == (code, reason) if use is not None else code is None


def test_addresses_belong_to_the_interfaces_of_their_networks(host: Host, write: Write) -> None:
    networks = {"eno1": ("10.1.2.0", 24), "eno2": ("10.1.0.0", 16), "eno3": ("0.0.0.0", 0), "eno5": ("169.254.0.0", 16)}
    write("proc/net/route", "\n".join([HEADER, *(ipv4(name, to, prefix) for name, (to, prefix) in networks.items())]))
    write("proc/net/fib_trie", FIB_TRIE)
    write(
        "proc/net/if_inet6",
        "20010db8000000000000000000000007 02 40 00 80     eno2\n"
        "fe800000000000000000000000000007 02 40 20 80     eno4\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "nonsense",
    )
    view = read(host)
    assert {name: one.addresses for name, one in view.interfaces.items() if one.addresses} == {
        "eno1": ("10.1.2.3/24",),
        "eno2": ("2001:db8::7/64",),
    }
    assert view.interfaces["eno1"].connected_route == Route("10.1.2.0/24")


def test_an_address_of_two_interfaces_with_one_network_counts_for_both(host: Host, write: Write) -> None:
    write("proc/net/route", "\n".join([HEADER, *(ipv4(name, "10.1.2.0", 24) for name in ("eno1", "eno2"))]))
    write("proc/net/fib_trie", FIB_TRIE)
    view = read(host)
    assert view.interfaces["eno1"].addresses == view.interfaces["eno2"].addresses == ("10.1.2.3/24",)


def test_an_address_without_a_network_may_be_on_each_interface_that_is_up(host: Host, write: Write) -> None:
    for name, flags in (("eno1", "0x1003"), ("eno2", "0x1002"), ("eno3", "0x1003")):
        write(f"sys/class/net/{name}/flags", flags)
    write("proc/net/route", "\n".join([HEADER, ipv4("eno3", "10.9.0.0", 16)]))
    local = "Local:\n  |-- {}\n     /32 host LOCAL\n"
    loopback = "  |-- 127.255.255.255\n     /32 link BROADCAST\n"
    write("proc/net/fib_trie", local.format("10.1.2.3") + loopback)
    assert host_use(read(host), "eno1") is None, "of a tunnel"
    broadcast = "  |-- 10.1.3.255\n     /32 link BROADCAST\n"
    network = "  |-- 10.1.2.0\n     /23 host LOCAL\n"
    write("proc/net/fib_trie", local.format("10.1.2.3") + network + broadcast)
    assert host_use(read(host), "eno1") is None, "of the loopback interface"
    write("proc/net/fib_trie", local.format("10.1.2.3") + broadcast)
    view = read(host)
    use = host_use(view, "eno1")
    unknown = "the host has the address 10.1.2.3 on an interface that its files do not show"
    assert use == HostUse("host-interface", f"it is not known whether the host uses eno1: {unknown}")
    assert host_use(view, "eno2") is None, "it is down"
    assert host_use(view, "eno3") == HostUse("host-address", "eno3 carries the route 10.9.0.0/16")


def test_a_host_without_files_has_an_empty_network(tmp_path: Path) -> None:
    view = network_files.read(tmp_path, tmp_path, time.monotonic() + DEADLINE_S, 10)
    assert view == NetworkView({})


def test_a_name_that_is_not_utf8_does_not_break_the_others(host: Host) -> None:
    name = os.fsdecode(b"e\xff0")
    (host.sysfs / "class/net" / name).mkdir()
    (host.proc / "net").mkdir()
    line = ipv4("NAME", "0.0.0.0", 0).encode().replace(b"NAME", b"e\xff0")
    (host.proc / "net/route").write_bytes(HEADER.encode() + b"\n" + line + b"\n" + ipv4("eno1", "0.0.0.0", 0).encode())
    view = read(host)
    assert set(view.interfaces) == {name, "eno1"}
    assert all(host_use(view, one) is not None for one in view.interfaces)


def test_tables_are_read_to_their_end_or_to_the_limit(host: Host, write: Write) -> None:
    lines = [ipv4("eno1", f"10.{n >> 8}.{n & 255}.0", 24, "10.0.0.1", 3) for n in range(1500)]
    write("proc/net/route", "\n".join([HEADER, *lines, ipv4("eno2", "0.0.0.0", 0)]))
    view = read(host, 1502)
    assert view.incomplete is None and view.interfaces["eno2"].default_route is not None
    view = read(host, 1501)
    assert view.incomplete == "the host has more than 1,501 routes"
    assert view.interfaces["eno1"].gateway_route is not None


def test_a_table_that_cannot_be_read_makes_the_view_incomplete(host: Host, write: Write) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    write("proc/net/route", HEADER)
    (host.proc / "net/route").chmod(0)
    view = read(host)
    assert [problem.where for problem in view.problems] == [str(host.proc / "net/route")]
    use = host_use(view, "eno1")
    assert use is not None and "cannot be read" in use.reason


@pytest.mark.parametrize("name", ["route", "ipv6_route", "fib_trie", "if_inet6"])
@pytest.mark.parametrize("target", [None, "/dev/zero", "/", "itself"])
def test_what_is_not_a_file_in_place_of_a_table_is_reported(
    host: Host, write: Write, name: str, target: str | None
) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    table = host.proc / "net" / name
    table.parent.mkdir()
    if target is None:
        os.mkfifo(table)
    else:
        table.symlink_to(table if target == "itself" else target)
    view = read(host)
    assert [problem.where for problem in view.problems] == [str(table)]
    use = host_use(view, "eno1")
    assert use is not None and f"{table} cannot be read" in use.reason


def unreadable(path: Path) -> None:
    path.write_text("0x1003")
    path.chmod(0)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def looped(path: Path) -> None:
    path.symlink_to(path)


def huge(path: Path) -> None:
    path.write_bytes(b"7" * (1 << 20))


def empty(path: Path) -> None:
    path.touch()


def undecodable(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0\n\x80")


@pytest.mark.parametrize(
    ("damage", "is_reported"),
    [(unreadable, True), (fifo, True), (looped, True), (huge, False), (empty, False), (undecodable, False)],
)
def test_a_damaged_file_of_an_interface_concerns_that_interface_alone(
    host: Host, write: Write, damage: Callable[[Path], None], is_reported: bool
) -> None:
    """Where its contents decide nothing, they are ignored."""
    for interface in ("eno1", "eno2", "eno3"):
        write(f"sys/class/net/{interface}/flags", "0x1003")
    write("proc/net/route", f"{HEADER}\n{ipv4('eno3', '0.0.0.0', 0, '10.0.0.1', 3)}")
    file = host.sysfs / "class/net/eno1/uevent"
    damage(file)
    view = read(host)
    assert [problem.where for problem in view.problems] == ([str(file)] if is_reported else [])
    assert view.incomplete is None and host_use(view, "eno2") is None
    use = host_use(view, "eno1")
    assert (use is not None) == is_reported
    if use is not None:
        assert use.reason == f"it is not known whether the host uses eno1: {file} cannot be read"
    uplink = host_use(view, "eno3")
    assert uplink is not None and "default route" in uplink.reason


def test_a_master_that_cannot_be_read_is_not_ruled_out(host: Host, write: Write) -> None:
    for interface in ("eno1", "eno2"):
        write(f"sys/class/net/{interface}/flags", "0x1003")
    write("sys/class/net/eno1/master", "bond0")  # not a link: readlink returns EINVAL
    view = read(host)
    assert host_use(view, "eno2") is None
    use = host_use(view, "eno1")
    assert use is not None and "master cannot be read" in use.reason


def test_a_loop_of_uppers_ends(host: Host, write: Write) -> None:
    for lower, upper in (("eno1", "br0"), ("br0", "vlan7"), ("vlan7", "br0"), ("vlan7", "eno1")):
        write(f"sys/class/net/{lower}/flags", "0x1003")
        (host.sysfs / "class/net" / lower / f"upper_{upper}").symlink_to(f"../{upper}")
    write("proc/net/route", f"{HEADER}\n{ipv4('vlan7', '0.0.0.0', 0, '10.0.0.1', 3)}")
    use = host_use(read(host), "eno1")
    assert use is not None and "vlan7 above it carries the default route" in use.reason


def test_files_are_not_read_after_the_deadline(host: Host) -> None:
    with pytest.raises(TimeoutError, match=re.escape(os.strerror(errno.ETIMEDOUT))):
        network_files.read(host.sysfs, host.proc / "net", time.monotonic() - 1, 10)


TABLES = ("route", "ipv6_route", "fib_trie", "if_inet6")
LINES = (
    ipv4("eno1", "10.1.2.0", 24).encode(),
    ipv4("eno1", "0.0.0.0", 0, "10.0.0.1", 3).encode(),
    ipv6("eno1", "2001:db8::", 32, ROUTER, 3).encode(),
    b"20010db8000000000000000000000007 02 40 00 80     eno2",
    b"|-- 10.1.2.3\n   /32 host LOCAL",
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    raw = bytearray(b"\n".join(draw(st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=40)), max_size=5))))
    if raw:
        for place, byte in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)):
            raw[place] = byte
    return bytes(raw)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.tuples(*[tables()] * len(TABLES)))
def test_any_tables_are_a_view(host: Host, contents: tuple[bytes, ...]) -> None:
    folder = host.proc / "net"
    folder.mkdir(exist_ok=True)
    for name, content in zip(TABLES, contents, strict=True):
        (folder / name).write_bytes(content)
    view = read(host)
    for name in view.interfaces:
        host_use(view, name)
