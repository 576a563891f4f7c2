"""Virtual interfaces, addresses and routes of simulated hosts, compared with those that a kernel makes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dra_simulate import builder
from dra_simulate.host_network import (
    Address,
    Bond,
    Bridge,
    HostNetwork,
    Macvlan,
    OpenVswitch,
    OpenVswitchPort,
    Route,
    VirtualInterface,
    Vlan,
    Vrf,
    netdevs,
)
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode, PciId
from dra_simulate.profiles import load_profile
from dra_simulate.roles.network import Interface
from dra_simulate.tree import File, Link, Tree
from simulate.kernel_network import UNSUPPORTED

MACS = MappingProxyType({f"p{number}": f"02:11:22:33:44:5{number}" for number in range(4)})
INDEX = MappingProxyType({name: 10 + number for number, name in enumerate(MACS)})
WITHOUT_LINK, OFF = "p2", "p3"
VETH_SPEED = 10_000
HARDWARE_DEPENDENT = re.compile(r"/(statistics/\w+|speed|duplex|path_cost|tx_queue_len|ad_num_ports)$")
"""Files whose values come from the ports, which are veth devices in the kernel, or from a peer."""


def machine(
    *interfaces: VirtualInterface, addresses: tuple[Address, ...] = (), routes: tuple[Route, ...] = ()
) -> Machine:
    """A host with four adapters: p0, p1, and those of WITHOUT_LINK and OFF."""
    adapters = tuple(
        Function(
            f"0000:00:0{1 + number}.0",
            PciId(0x8086, 0x1572, 0x020000),
            driver="i40e",
            roles=(
                Interface(
                    name,
                    MACS[name],
                    INDEX[name],
                    speed=VETH_SPEED,
                    up=name != OFF,
                    cable=name not in (WITHOUT_LINK, OFF),
                ),
            ),
        )
        for number, name in enumerate(MACS)
    )
    bridge = HostBridge("pci0000:00", 0, adapters)
    network = HostNetwork(interfaces, addresses, routes)
    return Machine("own", "four adapters", (NumaNode("0", 1 << 30, (10,)),), (bridge,), network=network)


def commands(described: Machine) -> list[list[str]]:
    """The commands of `ip` that make the same network."""
    assert described.network is not None
    found = [["link", "set", "lo", "up"]]
    for name, address in MACS.items():
        peer = ["peer", "name", f"{name}x", "index", str(INDEX[name] + 100)]
        found.append(["link", "add", name, "index", str(INDEX[name]), "address", address, "type", "veth", *peer])
        found.append(["link", "set", f"{name}x", "addrgenmode", "none"])
    for one in described.network.interfaces:
        below = ["link", one.parent] if one.parent else []
        options: dict[type[VirtualInterface], Callable[[Any], list[str]]] = {
            Bond: lambda bond: ["mode", bond.mode, "miimon", "100", "xmit_hash_policy", "layer3+4"],
            Vlan: lambda vlan: ["id", str(vlan.vlan_id)],
            Vrf: lambda vrf: ["table", str(vrf.table)],
        }
        own = options.get(type(one), lambda _: [])(one)
        hardware = [] if one.inherits_address else ["address", netdevs(described)[one.name].mac]
        found.append(
            ["link", "add", *below, "name", one.name, "index", str(one.index), *hardware, "type", one.kind, *own]
        )
        found += [["link", "set", port, "master", one.name] for port in one.ports]
    names = [*MACS, *(f"{name}x" for name in MACS), *(one.name for one in described.network.interfaces)]
    found += [["link", "set", name, "up"] for name in names if name not in (OFF, f"{OFF}x", f"{WITHOUT_LINK}x")]
    for entry in described.network.addresses:
        found.append(["address", "add", entry.address, "dev", entry.interface])
    for route in described.network.routes:
        via = ["via", route.gateway] if route.gateway else []
        metric = ["metric", str(route.metric)] if route.metric else []
        table = ["table", str(route.table)] if route.table != 254 else []
        family = ["-6"] if ":" in route.destination else []
        found.append([*family, "route", "add", route.destination, *via, "dev", route.interface, *metric, *table])
    return found


def kernel(described: Machine) -> dict[str, str]:
    """What the running kernel shows of that network."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, ip and unshare")
    program = Path(__file__).with_name("kernel_network.py")
    command = ["unshare", "--net", "--mount", sys.executable, str(program)]
    done = subprocess.run(
        command, input=json.dumps(commands(described)), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == UNSUPPORTED or "unshare failed" in done.stderr:
        pytest.skip("this kernel cannot make such an interface")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


KINDS: tuple[VirtualInterface, ...] = (
    Bridge(name="br0", index=20, ports=("p0", "p1")),
    Macvlan(name="mv0", index=20, parent="p1"),
    Vlan(name="p0.100", index=20, parent="p0", vlan_id=100),
    Vrf(name="red", index=20, ports=("p1",), table=10),
    Bond(name="bond0", index=20, ports=("p0", "p1"), mode="active-backup"),
    Bond(name="bond0", index=20, ports=("p0", "p1"), mode="802.3ad"),
)


@pytest.mark.parametrize("one", KINDS, ids=lambda one: f"{one.kind}-{getattr(one, 'mode', '')}".strip("-"))
def test_an_interface_has_the_files_and_links_of_the_kernel(one: VirtualInterface) -> None:
    described = machine(one)
    real, planned = kernel(described), builder.plan(described)
    where = {name: f"sys/devices/virtual/net/{name}" for name in (*MACS, one.name)}
    for name, netdev in netdevs(described).items():
        for path, entry in planned.entries.items():
            inside = path.removeprefix(f"{netdev.path}/")
            if inside == path or (
                name in MACS and not re.match(r"(address$|master|upper_|brport/|bonding_slave/)", inside)
            ):
                continue
            same = f"{where[name]}/{inside}"
            if isinstance(entry, Link) and inside != "subsystem":
                assert ends(same, real[same].removeprefix("-> ")) == ends(path, entry.target), path
            elif isinstance(entry, File):
                assert same in real, path
                if not HARDWARE_DEPENDENT.search(path):
                    assert real[same] == entry.content.decode(), path
        links = {path for path in real if re.fullmatch(rf"{where[name]}/(master|(upper|lower)_\S+|brif/\S+)", path)}
        assert {path.removeprefix(where[name]) for path in links} == {
            path.removeprefix(netdev.path)
            for path in planned.entries
            if re.fullmatch(rf"{re.escape(netdev.path)}/(master|(upper|lower)_\S+|brif/\S+)", path)
        }


def ends(path: str, target: str) -> str:
    """The interface that a link leads to, with the folder in it."""
    resolved = os.path.normpath(f"{os.path.dirname(path)}/{target}")  # noqa: PTH120 - text, not files
    return resolved.partition("/net/")[2]


ADDRESSES = (
    Address("br0", "10.1.2.3/24"),
    Address("br0", "10.1.2.4/32"),
    Address("br0", "10.0.0.0/8"),
    Address("p1", "10.9.0.1/31"),
    Address("br0", "2001:db8::5/64"),
    Address("p1", "fd00::1/128"),
    Address(WITHOUT_LINK, "172.16.2.1/24"),
    Address(WITHOUT_LINK, "2001:db8:10::1/64"),
    Address(OFF, "172.16.3.1/24"),
    Address(OFF, "2001:db8:11::1/64"),
)
ROUTES = (
    Route("0.0.0.0/0", "br0", "10.1.2.1", 100),
    Route("10.20.0.0/16", "p1", "10.9.0.0"),
    Route("10.20.0.0/24", "p1", "10.9.0.0"),
    Route("192.0.2.7/32", "p1"),
    Route("::/0", "br0", "2001:db8::1"),
    Route("2001:db8:1::/48", "br0", "2001:db8::2", 50),
    Route("2001:db8:2::/48", "br0"),
)


@pytest.fixture(scope="module", params=["default", "no-default"])
def both(request: pytest.FixtureRequest) -> tuple[dict[str, str], Tree]:
    """Addresses and routes on a bridge and an adapter: of the kernel, and of the plan."""
    routes = (
        ROUTES if request.param == "default" else tuple(one for one in ROUTES if not one.destination.endswith("/0"))
    )
    described = machine(Bridge(name="br0", index=20, ports=("p0",)), addresses=ADDRESSES, routes=routes)
    return kernel(described), builder.plan(described)


def planned_text(tree: Tree, name: str) -> str:
    entry = tree.entries[f"proc/net/{name}"]
    assert isinstance(entry, File)
    return entry.content.decode()


def test_route_is_that_of_the_kernel(both: tuple[dict[str, str], Tree]) -> None:
    assert planned_text(both[1], "route") == both[0]["proc/net/route"]


def test_fib_trie_has_the_leaves_of_the_kernel(both: tuple[dict[str, str], Tree]) -> None:
    def leaves(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if not line.lstrip().startswith("+--")]

    real, planned = both[0]["proc/net/fib_trie"], planned_text(both[1], "fib_trie")
    assert leaves(planned) == leaves(real)
    node = re.compile(r"( {3})* {2}(\+-- [\d.]+/\d+ \d+ \d+ \d+|\|-- [\d.]+)| {5}( {3})*/\d+ \w+ \w+|\w+:")
    for text in (real, planned):
        assert [line for line in text.splitlines() if not node.fullmatch(line)] == []


def test_if_inet6_has_the_lines_of_the_kernel(both: tuple[dict[str, str], Tree]) -> None:
    assert sorted(planned_text(both[1], "if_inet6").splitlines()) == sorted(both[0]["proc/net/if_inet6"].splitlines())


def test_ipv6_route_has_the_lines_of_the_kernel(both: tuple[dict[str, str], Tree]) -> None:
    def rows(text: str) -> list[str]:
        # The peers of veth devices have no counterpart, and users of a route come and go.
        lines = [line for line in text.splitlines() if not re.search(r" p\dx$", line)]
        return sorted(re.sub(r"( [0-9a-f]{8}) [0-9a-f]{8}( [0-9a-f]{8} [0-9a-f]{8} )", r"\1 -\2", one) for one in lines)

    assert rows(planned_text(both[1], "ipv6_route")) == rows(both[0]["proc/net/ipv6_route"])


def test_tables_of_a_vrf_are_separate_in_fib_trie_and_absent_in_route() -> None:
    described = machine(
        Vrf(name="red", index=20, ports=("p1",), table=10),
        addresses=(Address("p0", "192.0.2.1/24"), Address("p1", "10.9.0.1/24")),
        routes=(Route("0.0.0.0/0", "p1", "10.9.0.2", table=10),),
    )
    tree = builder.plan(described)
    assert re.findall(r"^\S.*:$", planned_text(tree, "fib_trie"), re.MULTILINE) == ["Id 10:", "Main:", "Local:"]
    _, *rows = planned_text(tree, "route").splitlines()
    assert [row.split()[0] for row in rows] == ["p0"]


def test_a_vlan_is_off_while_its_parent_is_off() -> None:
    described = machine(Vlan(name="p3.7", index=20, parent=OFF, vlan_id=7), routes=(Route("0.0.0.0/0", "p3.7"),))
    tree = builder.plan(described)
    flags = tree.entries["sys/devices/virtual/net/p3.7/flags"]
    assert isinstance(flags, File) and flags.content == b"0x1002\n"
    assert len(planned_text(tree, "route").splitlines()) == 1


def test_open_vswitch_is_the_master_of_its_ports_and_has_an_internal_one() -> None:
    described = machine(
        OpenVswitch(name="ovs-system", index=20, ports=("p0",)),
        OpenVswitchPort(name="br-ex", index=21),
        addresses=(Address("br-ex", "192.0.2.1/24"),),
    )
    entries = builder.plan(described).entries
    port = netdevs(described)["p0"].path
    assert isinstance(master := entries[f"{port}/master"], Link) and master.target.endswith("/virtual/net/ovs-system")
    assert {path.rpartition("/")[2] for path in entries if re.search(r"/(upper|lower)_", path)} == {
        "upper_ovs-system",
        "lower_p0",
    }
    assert not any(path.startswith("sys/devices/virtual/net/br-ex/lower_") for path in entries)


def test_a_host_without_a_described_network_has_no_files_of_it() -> None:
    entries = builder.plan(load_profile("cpu-only")).entries
    assert not [path for path in entries if path.startswith(("proc/net", "sys/devices/virtual/net"))]
