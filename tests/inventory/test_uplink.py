from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dra_agent.claimable.network_files import foreign_interfaces
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory import net_links
from dra_agent.inventory.model import Diagnostic
from dra_agent.inventory.nic import NicBackend
from dra_agent.inventory.uplink import Uplinks, lower_devices
from dra_agent.topology import DeviceKind
from eventually import DEADLINE_S
from inventory.conftest import FunctionMaker

Write = Callable[[str, object], None]
HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"


def test_an_uplink_is_followed_through_vlan_and_bond_to_the_hardware(host: Host, write: Write) -> None:
    for name, lower in {"vlan7": ["bond0"], "bond0": ["eno1", "eno2"], "eno1": [], "eno2": [], "eno3": []}.items():
        (host.sysfs / "class/net" / name).mkdir()
        for below in lower:
            (host.sysfs / "class/net" / name / f"lower_{below}").symlink_to(f"../{below}")
    write(
        "proc/net/route",
        f"{HEADER}\nvlan7\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eno3\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
    )
    assert Uplinks(host).interfaces([]) == {"vlan7", "bond0", "eno1", "eno2"}


def test_an_interface_that_joins_the_bond_of_the_default_route_is_an_uplink_at_the_next_event(
    host: Host, write: Write, function: FunctionMaker
) -> None:
    net = host.sysfs / "class/net"
    for name in ("bond0", "eno1"):
        (net / name).mkdir()
    write("proc/net/route", f"{HEADER}\nbond0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    backend = NicBackend(host)
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x8086", "0x1592", net=("eno1",))
    assert backend.shared_facts([nic], [], again=True) == {}
    (net / "bond0/lower_eno1").symlink_to("../eno1")
    (net / "eno1/master").symlink_to("../bond0")
    assert backend.shared_facts([nic], [], again=False) == {"0000:3b:00.0": "eno1"}
    (net / "bond0/lower_eno1").unlink()
    (net / "eno1/master").unlink()
    assert backend.shared_facts([nic], [], again=False) == {}


def test_an_ipv6_only_host_has_an_uplink_too(host: Host, write: Write) -> None:
    zero = "0" * 32
    write(
        "proc/net/ipv6_route",
        f"{zero} 00 {zero} 00 fe80{'0' * 28} 00000400 00000001 00000000 00000003     eth1\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00000201     eth2",
    )
    assert Uplinks(host).interfaces([]) == {"eth1"}


def test_an_agent_in_another_network_namespace_reads_the_configured_routes(host: Host, write: Write) -> None:
    write("proc/net/route", f"{HEADER}\neth9\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    write("net/route", f"{HEADER}\neno1\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    assert Uplinks(host).interfaces([]) == {"eth9"}
    there = Host(sysfs=host.sysfs, dev=host.dev, proc=host.proc, net=host.proc.parent / "net")
    assert Uplinks(there).interfaces([]) == {"eno1"}


def test_without_the_configured_routes_no_interface_can_be_claimed(host: Host, write: Write) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    there = Host(sysfs=host.sysfs, dev=host.dev, proc=host.proc, net=host.proc.parent / "nowhere")
    problems: list[Diagnostic] = []
    assert Uplinks(there).interfaces(problems) == {
        *(path.name for path in (host.sysfs / "class/net").iterdir()),
        "eno1",
    }
    assert "none can be claimed" in problems[0].message and problems[0].where == str(there.net)
    write("nowhere/route", HEADER)
    assert Uplinks(there).interfaces([]) == frozenset(), "a host without a default route needs none of them"


def test_interfaces_of_another_network_namespace_are_foreign(host: Host, write: Write) -> None:
    for name, address in {"lo": "00:00:00:00:00:00", "eth77": "02:00:00:00:00:01", "br0": "02:00:00:00:00:02"}.items():
        write(f"sys/class/net/{name}/address", address)
    write("sys/class/net/lo/device/vendor", "0x0")  # as if it were hardware: it has the same address everywhere
    write("sys/class/net/eth77/device/vendor", "0x15b3")
    net = host.sysfs / "class/net"
    assert foreign_interfaces(net) == ["eth77"]
    write("sys/class/net/lo/address", "02:00:00:00:00:03")
    assert foreign_interfaces(net) == ["eth77", "lo"], "the name alone does not make it ours"
    write("sys/class/net/lo/address", "nonsense")
    assert foreign_interfaces(net) == ["eth77", "lo"]


def test_hardware_interfaces_of_this_host_are_not_foreign() -> None:
    net = Path("/sys/class/net")
    assert foreign_interfaces(net) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_in_a_separate_network_namespace_no_interface_can_be_claimed() -> None:
    if not any((folder / "device").exists() for folder in Path("/sys/class/net").iterdir()):
        pytest.skip("no hardware interface here")
    code = (
        "from dra_agent.inventory.uplink import *\n"
        "from dra_agent.inventory.uplink import SysfsDir\n"
        "def names(): return set(SysfsDir(Path('/sys/class/net'), []).names())\n"
        "before = None\n"
        "while before != names():\n"  # others of this machine add and remove interfaces
        "    problems, before = [], names()\n"
        "    found = Uplinks(Host()).interfaces(problems)\n"
        "assert found == before, found\n"
        "print(problems[0])"
    )
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace can be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "another network namespace" in done.stdout and "--net-root" in done.stdout


def test_damaged_tables_and_loops_of_links_do_no_harm(host: Host, write: Write) -> None:
    write("proc/net/route", f"{HEADER}\neth0\nzz\tzz\tzz\tzz\tzz\tzz\tzz\tzz\n\0")
    write("proc/net/ipv6_route", "nonsense\n" + "0 " * 9)
    assert Uplinks(host).interfaces([]) == frozenset()
    assert lower_devices({"a"}, {"a": ["b"], "b": ["a"]}) == {"a", "b"}


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="no network interfaces here")
def test_the_kernel_answers_through_a_separate_process() -> None:
    facts = net_links.query(DEADLINE_S)
    assert "lo" in {link.name for link in facts.links}
    assert set(facts.default_routes) <= {link.name for link in facts.links}


@pytest.mark.usefixtures("real_children")
def test_a_process_that_fails_or_hangs_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for executable, message in (("/bin/false", "exit code 1"), ("/nonexistent", "No such file")):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(RetryableError, match=message):
            net_links.query()
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    with pytest.raises(RetryableError, match="failed: JSON is malformed"):
        net_links.query()
    monkeypatch.undo()
    with pytest.raises(RetryableError, match=r"within 0.001 s"):
        net_links.query(deadline=0.001)
    with pytest.raises(RetryableError, match="is left alone"):
        net_links.query(deadline=0.001)
    net_links.query(DEADLINE_S)


def test_the_answer_is_plain_json() -> None:
    facts = net_links.LinkFacts((net_links.NetLink("bond0", "bond", ("eno1",)), net_links.NetLink("eno1")), ("bond0",))
    encoded = msgspec.json.encode(facts)
    assert msgspec.json.decode(encoded, type=net_links.LinkFacts) == facts
