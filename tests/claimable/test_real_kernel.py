"""Networks of the running kernel in a network namespace of their own: its answers and its files give the same uses."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from dra_agent.claimable.network_view import NetworkView
from dra_agent.claimable.use import host_use
from eventually import DEADLINE_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")

READ = """
import os, pickle, subprocess, sys, time
from pathlib import Path
from dra_agent.claimable import kernel_network, network_files
for line in sys.stdin.buffer.read().splitlines():
    done = subprocess.run([b"sh", b"-c", line], capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace"))
deadline = time.monotonic() + float(sys.argv[1])
views = kernel_network.read(deadline, 100_000), network_files.read(Path("/sys"), Path("/proc/net"), deadline, 100_000)
sys.stdout.buffer.write(pickle.dumps(views))
"""
NIC = [
    "ip link add nic0 type veth peer name far0",
    "ip link set far0 up",
    "ip link set nic0 up",
]
ADDRESS = "ip address add 10.1.2.3/24 dev nic0"
IFF_UP = 0x1
INTERFACE, ADDRESS_ONLY = "host-interface", "host-address"


class Case(NamedTuple):
    commands: list[str | bytes]
    code: str | None
    reason: str = ""
    files: str | None = ""
    """The code from files, where they show less; empty: the same."""
    name: str = "nic0"


CASES: Mapping[str, Case] = {
    "idle": Case([], None),
    "address": Case([ADDRESS], ADDRESS_ONLY, "nic0 has the address 10.1.2.3/24"),
    "IPv6 address": Case(
        ["ip address add 2001:db8::7/64 dev nic0 nodad"], ADDRESS_ONLY, "nic0 has the address 2001:db8::7/64"
    ),
    # Files do not name the interface of an address without a network.
    "point to point": Case(
        ["ip address add 10.1.2.3 peer 10.9.9.9/32 dev nic0"], ADDRESS_ONLY, "nic0 has the address 10.1.2.3/32"
    ),
    # Files show the address without its interface, which may be each one that is up and has no other use.
    "address without a route of its own": Case(
        ["ip address add 10.1.2.3/24 dev nic0 noprefixroute"],
        ADDRESS_ONLY,
        "nic0 has the address 10.1.2.3/24",
        files=INTERFACE,
    ),
    "address whose network is in another table": Case(
        [
            "ip address add 10.1.2.3/24 dev nic0 noprefixroute",
            "ip route add 10.1.2.0/24 dev nic0 table 100",
            "ip rule add from 10.1.2.3 table 100",
        ],
        ADDRESS_ONLY,
        "nic0 has the address 10.1.2.3/24",
        files=INTERFACE,
    ),
    "address of an interface without a network, as of a tunnel": Case(
        [
            "ip link add flannel.1 type vxlan id 1 dstport 8472",
            "ip link set flannel.1 up",
            "ip address add 10.42.0.0/32 dev flannel.1",
        ],
        None,
    ),
    "link-local address of a global scope": Case(["ip address add 169.254.7.7/16 dev nic0"], None),
    "link-local address": Case(["ip address add 169.254.7.7/16 dev nic0 scope link"], None),
    "default route": Case(
        [ADDRESS, "ip route add default via 10.1.2.1"], INTERFACE, "nic0 carries the default route via 10.1.2.1"
    ),
    "IPv6 default route": Case(
        ["ip -6 route add default via fe80::1 dev nic0"], INTERFACE, "nic0 carries the default route via fe80::1"
    ),
    "default route of another table": Case(
        [ADDRESS, "ip route add default via 10.1.2.1 table 100", "ip rule add from 10.1.2.3 table 100"],
        INTERFACE,
        "nic0 carries the default route via 10.1.2.1 (table 100)",
        files=ADDRESS_ONLY,
    ),
    "route of a table with a large number": Case(
        [ADDRESS, "ip route add 10.20.0.0/16 via 10.1.2.1 table 70000"],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via 10.1.2.1 (table 70000)",
        files=ADDRESS_ONLY,
    ),
    "route by a gateway": Case(
        [ADDRESS, "ip route add 10.20.0.0/16 via 10.1.2.1"],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via 10.1.2.1",
    ),
    "IPv6 route by a gateway": Case(
        ["ip -6 route add 2001:db8:1::/48 via fe80::1 dev nic0"],
        INTERFACE,
        "nic0 carries the route 2001:db8:1::/48 via fe80::1",
    ),
    "IPv4 route by an IPv6 gateway": Case(
        ["ip route add 10.20.0.0/16 via inet6 fe80::1 dev nic0"],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via fe80::1",
    ),
    "second hop of a multipath route": Case(
        [
            "ip link add nic1 type veth peer name far1",
            "ip link set far1 up",
            "ip link set nic1 up",
            "ip address add 10.1.3.3/24 dev nic1",
            ADDRESS,
            "ip route add 10.20.0.0/16 nexthop via 10.1.3.1 nexthop via 10.1.2.1",
        ],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via 10.1.2.1",
        files=ADDRESS_ONLY,
    ),
    "nexthop object": Case(
        [ADDRESS, "ip nexthop add id 7 via 10.1.2.1 dev nic0", "ip route add 10.20.0.0/16 nhid 7"],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via 10.1.2.1",
    ),
    "group of nexthop objects that routes only number": Case(
        [
            "echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode",
            ADDRESS,
            "ip nexthop add id 7 via 10.1.2.1 dev nic0",
            "ip nexthop add id 8 group 7",
            "ip route add 10.20.0.0/16 nhid 8",
        ],
        INTERFACE,
        "nic0 carries the route 10.20.0.0/16 via 10.1.2.1",
    ),
    "route on the link": Case(
        ["ip route add 10.30.0.0/16 dev nic0"], ADDRESS_ONLY, "nic0 carries the route 10.30.0.0/16"
    ),
    "routes that do not count": Case(
        [
            "ip route add blackhole 10.9.0.0/16",
            "ip route add unreachable 10.8.0.0/16",
            "ip route add prohibit default",
            "ip -6 route add unreachable default",
            "ip -6 route add blackhole 2001:db8:9::/48",
            "ip route add 224.0.0.0/4 dev nic0",
            "ip route add 169.254.0.0/16 dev nic0",
            "ip route add local 10.7.0.0/16 dev nic0 table local",
            "ip -6 route add ff05::/16 dev nic0 table local",
        ],
        None,
    ),
    "port of a bridge": Case(
        ["ip link add br0 type bridge", "ip link set nic0 master br0"], INTERFACE, "nic0 is a port of br0"
    ),
    "port of the bridge of the default route": Case(
        [
            "ip link add br0 type bridge",
            "ip link set br0 up",
            "ip link set nic0 master br0",
            "ip address add 10.1.2.3/24 dev br0",
            "ip route add default via 10.1.2.1",
        ],
        INTERFACE,
        "nic0 is a port of br0, which carries the default route via 10.1.2.1",
    ),
    "port that left its bridge": Case(
        ["ip link add br0 type bridge", "ip link set nic0 master br0", "ip link set nic0 nomaster"], None
    ),
    "port of a bond": Case(
        ["ip link set nic0 down", "ip link add bond0 type bond", "ip link set nic0 master bond0"],
        INTERFACE,
        "nic0 is a port of bond0",
    ),
    "bond, VLAN, bridge": Case(
        [
            "ip link set nic0 down",
            "ip link add bond0 type bond",
            "ip link set nic0 master bond0",
            "ip link add link bond0 name bond0.7 type vlan id 7",
            "ip link add br7 type bridge",
            "ip link set bond0.7 master br7",
            "ip link set br7 up",
            "ip route add default dev br7",
        ],
        INTERFACE,
        "nic0 is a port of bond0, br7 above it carries the default route",
    ),
    "member of a VRF": Case(
        ["ip link add blue type vrf table 10", "ip link set nic0 master blue"],
        INTERFACE,
        "nic0 is a member of the VRF blue",
    ),
    "parent of a VLAN": Case(
        ["ip link add link nic0 name nic0.7 type vlan id 7"], INTERFACE, "nic0 is the lower device of vlan nic0.7"
    ),
    "parent of a macvlan": Case(
        ["ip link add link nic0 name mv0 type macvlan mode bridge"],
        INTERFACE,
        "nic0 is the lower device of macvlan mv0",
    ),
    "parent of an ipvlan": Case(
        ["ip link add link nic0 name iv0 type ipvlan"], INTERFACE, "nic0 is the lower device of ipvlan iv0"
    ),
    "below a VXLAN": Case(
        ["ip link add vx0 type vxlan id 7 dev nic0 dstport 4789"], INTERFACE, "nic0 is the lower device of vxlan vx0"
    ),
    "a port of an HSR ring": Case(
        [
            "ip link add nic1 type veth peer name far1",
            "ip link add hsr0 type hsr slave1 nic0 slave2 nic1",
        ],
        INTERFACE,
        "nic0 is the lower device of hsr hsr0",
    ),
    "below an AMT gateway": Case(
        ["ip link add amt0 type amt mode gateway local 10.1.2.3 discovery 10.1.2.4 dev nic0"],
        INTERFACE,
        "nic0 is the lower device of amt amt0",
    ),
    "macvlan in another namespace": Case(
        [
            # The namespace ends with the mount, and that with the processes of the test.
            "mount -t tmpfs tmpfs /run",
            "ip netns add other",
            "ip link add link nic0 name mv0 type macvlan mode bridge",
            "ip link set mv0 netns other",
        ],
        None,
    ),
    "VLAN and address in another namespace": Case(
        [
            "mount -t tmpfs tmpfs /run",
            "ip netns add other",
            "ip link add link nic0 name nic0.5 type vlan id 5",
            "ip link set nic0.5 netns other",
            "ip -n other link set nic0.5 up",
            "ip -n other address add 10.1.2.3/24 dev nic0.5",
            "ip -n other route add default via 10.1.2.1",
        ],
        None,
    ),
    "name that is not UTF-8": Case(
        [
            b"ip link add n\xff0 type veth peer name far1",
            b"ip link set n\xff0 up",
            b"ip address add 10.1.2.3/24 dev n\xff0",
        ],
        ADDRESS_ONLY,
        r"n\udcff0 has the address 10.1.2.3/24",
        name=os.fsdecode(b"n\xff0"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_kernel_and_its_files_show_the_uses_of_an_interface(case: Case, tmp_path: Path) -> None:
    by_kernel, by_files = views([*NIC, *case.commands], tmp_path)
    use = host_use(by_kernel, case.name)
    assert (use.code, use.reason) == (case.code, case.reason) if use is not None else case.code is None
    from_files = host_use(by_files, case.name)
    assert (from_files and from_files.code) == (case.code if case.files == "" else case.files)
    assert by_kernel.incomplete is by_files.incomplete is None and not by_files.problems
    for name, interface in by_kernel.interfaces.items():
        other = by_files.interfaces[name]
        assert (interface.master, interface.uppers) == (other.master, other.uppers)


def views(commands: list[str | bytes], folder: Path) -> tuple[NetworkView, NetworkView]:
    """Return what the kernel answers and what files show after commands in a new namespace."""
    own_sysfs = 'mount -t sysfs sysfs /sys && exec "$@"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", own_sysfs, "sh", sys.executable, "-c", READ, str(DEADLINE_S)],
        input=b"\n".join(os.fsencode(command) for command in commands),
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=3 * DEADLINE_S,
    )
    errors = done.stderr.decode()
    for reason in ("unshare: ", "mount: ", "Unknown device type", "not found"):
        if reason in errors:
            pytest.skip(f"not possible on this machine: {errors.strip()}")
    assert done.returncode == 0, errors
    kernel, files = pickle.loads(done.stdout)
    return kernel, files
