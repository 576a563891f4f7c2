"""Interfaces moved by the hook between real network namespaces: what runtimes, restarts and crashes do with it.

The kernel deletes a virtual interface with its network; a NIC's comes back to the host, which `Nic.come_back` does.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from container_runtime import require_runtime
from deadlines import a_minute
from device_setup import bpf_programs
from device_setup.moved_nic import (
    IN_POD,
    NET,
    Nic,
    addresses,
    answered,
    described,
    in_network,
    ip,
    links,
    possible,
)
from device_setup.test_net import ADDRESS
from dra_agent.cdi.claim import SpecDevice, build_spec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.device_setup import bpf, rtnetlink
from dra_agent.device_setup.net.mover import TASK
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.netdevice import is_of_device
from eventually import DEADLINE_S

pytestmark = pytest.mark.skipif(not possible(), reason="needs root, network namespaces, iproute2 and util-linux")


@pytest.fixture(autouse=True)
def every_test_has_time(no_haste: None) -> None:
    """A machine that runs many tests takes seconds to start a process."""


def test_an_interface_is_moved_and_put_back_as_it_was(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD, mtu=1400)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (NET / the_nic.name).exists() and not (NET / IN_POD).exists()
    found = links(pod)[IN_POD]
    assert (found["mtu"], found["address"]) == (1400, the_nic.hardware)
    assert "UP" in found["flags"] and addresses(found) == ["192.0.2.7/24"]
    the_nic.come_back(pod)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    (host,) = json.loads(ip("-json", "address", "show", "dev", the_nic.name))
    assert (host["mtu"], addresses(host)) == (1500, ["192.0.2.7/24"]) and "UP" in host["flags"]
    assert not (NET / IN_POD).exists() and not (the_nic.root / "state/net/nic-0.json").exists()


def spoil(pod: int, hardware: str) -> None:
    """What root of a pod can do to an interface."""
    ip("link", "set", IN_POD, "down", inside=pod)
    ip("link", "set", IN_POD, "address", hardware, "mtu", "900", "txqueuelen", "7", "alias", "mine", inside=pod)
    ip("link", "set", IN_POD, "promisc", "on", "allmulticast", "on", "arp", "off", "group", "7", inside=pod)
    ip("link", "set", IN_POD, "gso_max_size", "4000", "gso_max_segs", "5", inside=pod)


def attach_xdp(pid: int, name: str, *, by_link: bool = False) -> int | None:
    """Attach a program as a pod would; gives the link. Skips where the kernel loads none."""

    def run() -> int | None:
        with in_network(pid):
            try:
                program = bpf_programs.load(bpf_programs.XDP)
            except OSError as error:
                return pytest.skip(f"no XDP program can be loaded here: {error}")
            try:
                index = socket.if_nametoindex(name)
                if by_link:
                    return bpf_programs.link(index, program)
                with IPRoute() as network:
                    network.link("set", index=index, xdp_fd=program)
            finally:
                os.close(program)
        return None

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(60)


def attach_tcx(pid: int, name: str) -> None:
    def run() -> None:
        with in_network(pid):
            try:
                program = bpf_programs.load(bpf_programs.TCX)
            except OSError as error:
                pytest.skip(f"no program can be loaded here: {error}")
            try:
                bpf_programs.attach_tcx(socket.if_nametoindex(name), program)
            except OSError as error:
                pytest.skip(f"this kernel has no tcx: {error}")
            finally:
                os.close(program)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(60)


def test_nothing_that_a_pod_has_made_of_an_interface_is_left(the_nic: Nic, pod: int) -> None:
    ip("link", "property", "add", "dev", the_nic.name, "altname", f"{the_nic.name}alt")
    ip("link", "set", the_nic.name, "alias", "the host's", "txqueuelen", "500")
    before = described(os.getpid(), the_nic.name)
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    spoil(pod, "02:00:00:00:00:99")
    ip("link", "property", "del", "dev", IN_POD, "altname", f"{the_nic.name}alt", inside=pod)
    ip("link", "property", "add", "dev", IN_POD, "altname", f"{the_nic.name}mine", inside=pod)
    the_nic.come_back(pod)
    the_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert described(os.getpid(), the_nic.name) == before
    assert addresses(links(os.getpid())[the_nic.name]) == ["192.0.2.7/24"]


def foreign_names() -> list[bytes]:
    """Names that the kernel accepts (dev_valid_name) and that are not text: each byte but those that it refuses."""
    fuzzed = random.Random(43)
    allowed = [byte for byte in range(1, 256) if byte not in b"/:@%" and not chr(byte).isspace()]
    drawn = [bytes(fuzzed.choices(allowed, k=fuzzed.randint(1, 15))) for _ in range(4)]
    return [b"\xff\xfe", b"net\xe9", b"\xed\xb2\x80", b"\xf0\x9f\x92\xa9", b"\xc0\x80", b"\\xff", *drawn]


@pytest.mark.parametrize("name", foreign_names())
def test_a_pod_cannot_keep_a_nic_by_a_name_that_is_not_text(the_nic: Nic, pod: int, name: bytes) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    there = ["nsenter", f"--net=/proc/{pod}/ns/net", "ip", "link"]
    own = name + str(os.getpid()).encode()[: 15 - len(name)]  # other runs of these tests share the host's network
    subprocess.run([*there, "set", "dev", IN_POD, "down"], check=True)
    subprocess.run([*there, "set", "dev", IN_POD, "name", own], check=True)
    subprocess.run(
        [*there, "property", "add", "dev", own, "altname", b"alt\xff" + os.urandom(4).hex().encode()], check=True
    )
    subprocess.run([*there, "set", "dev", own, "alias", b"\xff\xfe"], check=True)
    subprocess.run([*there, "set", "dev", own, "netns", str(os.getpid())], check=True)
    agent = the_nic.new_agent()
    agent.interfaces.of = lambda address: [n for n in (the_nic.name, os.fsdecode(own)) if (NET / n).exists()]  # type: ignore[method-assign]
    assert is_of_device(os.fsdecode(own), the_nic.hardware)
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    host = links(os.getpid())[the_nic.name]
    assert (host["address"], addresses(host)) == (the_nic.hardware, ["192.0.2.7/24"])
    assert "altnames" not in host and not host.get("ifalias")


def test_a_pod_cannot_keep_the_name_of_the_hosts_interface(the_nic: Nic, pod: int) -> None:
    """As another alternative name it would prevent the kernel from giving the interface its name again."""
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    ip("link", "property", "add", "dev", IN_POD, "altname", the_nic.name, inside=pod)
    the_nic.come_back(pod)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert links(os.getpid())[the_nic.name]["ifname"] == the_nic.name


def test_a_program_that_a_pod_left_on_an_interface_is_removed(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    attach_xdp(pod, IN_POD)
    the_nic.come_back(pod)
    assert "xdp" in described(os.getpid(), IN_POD)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert "xdp" not in described(os.getpid(), the_nic.name)


def test_a_filter_that_a_pod_left_on_an_interface_is_removed(the_nic: Nic, pod: int) -> None:
    """The kernel removes queueing disciplines, with their filters, where an interface is moved; tcx stays."""
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    tc = ["nsenter", f"--net=/proc/{pod}/ns/net", "tc", "qdisc", "replace", "dev", IN_POD, "root", "pfifo"]
    subprocess.run(tc, capture_output=True, check=False)
    attach_tcx(pod, IN_POD)
    the_nic.come_back(pod)
    index = socket.if_nametoindex(IN_POD)
    assert bpf.tcx_programs(index)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert bpf.tcx_programs(index) == ()
    shown = subprocess.run(["tc", "qdisc", "show", "dev", the_nic.name], capture_output=True, text=True, check=False)
    assert "pfifo limit" not in shown.stdout


def test_a_nic_whose_program_cannot_be_removed_is_withheld(the_nic: Nic, pod: int) -> None:
    """Another process holds the link, so the kernel does not remove it for the agent."""
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    held = attach_xdp(pod, IN_POD, by_link=True)
    assert held is not None
    try:
        the_nic.come_back(pod)
        with pytest.raises(RetryableError, match=r"an XDP program \(id \d+\) cannot be removed: .*bpftool link"):
            the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
        assert the_nic.note()["uid"] == "a"
    finally:
        os.close(held)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert "xdp" not in described(os.getpid(), the_nic.name)


def test_an_interface_with_a_program_of_the_host_is_not_prepared(the_nic: Nic) -> None:
    """It would filter or forward the pod's packets."""
    attach_xdp(os.getpid(), the_nic.name)
    before = described(os.getpid(), the_nic.name)["xdp"]
    message = f"interface: the host uses it: {the_nic.name} has an XDP program of the host; remove it"
    with pytest.raises(RetryableError, match=message):
        the_nic.prepare(name=IN_POD)
    assert described(os.getpid(), the_nic.name)["xdp"] == before and the_nic.agent.noted("a") == []


def test_an_interface_that_an_earlier_agent_moved_is_cleaned_too(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    note = the_nic.note()
    del note["link"]  # it kept less
    (the_nic.root / "state/net/nic-0.json").write_text(json.dumps(note))
    ip("link", "set", IN_POD, "down", inside=pod)
    ip("link", "set", IN_POD, "address", "02:00:00:00:00:99", inside=pod)
    the_nic.come_back(pod)
    the_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert described(os.getpid(), the_nic.name)["address"] == the_nic.hardware


def test_a_second_container_and_one_that_is_restarted_find_it_and_change_nothing(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    # What the first container makes of it is its own business from then on.
    ip("address", "replace", "198.51.100.1/24", "dev", IN_POD, inside=pod)
    ip("address", "delete", "192.0.2.7/24", "dev", IN_POD, inside=pod)
    ip("link", "set", IN_POD, "address", "02:00:00:00:00:99", inside=pod)
    with answered(the_nic.new_agent()):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    assert addresses(links(pod)[IN_POD]) == ["198.51.100.1/24"]


def test_containers_that_start_at_the_same_time_all_start(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent), ThreadPoolExecutor(4) as pool:
        done = [pool.submit(the_nic.hook, outcome, pod) for _ in range(4)]
    assert [(one.result().returncode, one.result().stderr) for one in done] == [(0, "")] * 4
    assert IN_POD in links(pod)


def test_a_move_that_an_agent_did_not_live_to_end_is_ended_by_the_next(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD, routes=[{"destination": "203.0.113.0/24", "gateway": "192.0.2.1"}])
    # The kernel's part is one step; killed after it, nothing is noted and nothing is set.
    ip("link", "set", the_nic.name, "netns", str(pod), "name", IN_POD)
    assert "network" not in the_nic.note() and addresses(links(pod)[IN_POD]) == []
    with answered(the_nic.new_agent()):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    assert addresses(links(pod)[IN_POD]) == ["192.0.2.7/24"]
    assert f"203.0.113.0/24 via 192.0.2.1 dev {IN_POD}" in ip("route", inside=pod)
    assert the_nic.note()["network"] == os.fspath(Path(f"/proc/{pod}/ns/net").readlink())


def test_addresses_are_restored_after_a_crash_during_the_move(
    the_nic: Nic, pod: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that moves it is killed after the move: the container does not start, and the claim is released."""
    outcome = the_nic.prepare(name=IN_POD)

    def killed(request: rtnetlink.MoveRequest) -> rtnetlink.NetResult:
        ip("link", "set", the_nic.name, "netns", str(pod), "name", IN_POD)
        raise RetryableError("asking the kernel did not respond within 15 s")

    with answered(the_nic.agent):
        monkeypatch.setattr(rtnetlink, "query", killed)
        assert the_nic.hook(outcome, pod).returncode == 1
    monkeypatch.undo()
    assert addresses(links(pod)[IN_POD]) == []
    the_nic.come_back(pod)
    the_nic.new_agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert addresses(links(os.getpid())[the_nic.name]) == ["192.0.2.7/24"]


def test_the_pod_that_has_an_interface_is_reported(the_nic: Nic, pod: int, other_pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        assert the_nic.hook(outcome, pod).returncode == 0
        # An interface of that name that is not the NIC's is none of the claim's.
        ip("link", "add", IN_POD, "type", "veth", "peer", "name", "x", inside=other_pod)
        done = the_nic.hook(outcome, other_pod)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        first, second = (os.fspath(Path(f"/proc/{one}/ns/net").readlink()) for one in (pod, other_pod))
        assert line.startswith("dra-agent-hook: the claim's network interface cannot be moved to the container: device")
        assert f"device nic-0 of claim a: its interface {the_nic.name} is neither on the host nor in" in line
        assert f"network {second}; it was moved to {first}; only one pod at a time" in line
        assert the_nic.note()["network"] == first and IN_POD in links(pod)
        with pytest.raises(RetryableError, match="has not returned from the container"):
            the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
        # The first pod has gone, and its network gave the interface back under the name that it had there.
        the_nic.come_back(pod)
        ip("link", "delete", IN_POD, inside=other_pod)
        assert the_nic.hook(outcome, other_pod).returncode == 0
    assert addresses(links(other_pod)[IN_POD]) == ["192.0.2.7/24"]


def test_addresses_and_routes_of_the_claim(the_nic: Nic, pod: int) -> None:
    routes = [{"destination": "203.0.113.0/24", "gateway": "10.7.0.1"}, {"destination": "fd00:8::/64"}]
    outcome = the_nic.prepare(name=IN_POD, addresses=["10.7.0.5/24", "fd00:7::5/64"], routes=routes)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(addresses(links(pod)[IN_POD])) == ["10.7.0.5/24", "fd00:7::5/64"], "instead of the host's"
    assert f"203.0.113.0/24 via 10.7.0.1 dev {IN_POD}" in ip("route", inside=pod)
    assert f"fd00:8::/64 dev {IN_POD}" in ip("-6", "route", inside=pod)


def test_a_route_that_the_kernel_refuses_is_named_each_time(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD, routes=[{"destination": "203.0.113.0/24", "gateway": "10.99.0.1"}])
    with answered(the_nic.agent):
        for _ in range(2):
            done = the_nic.hook(outcome, pod)
            assert done.returncode == 1
            wanted = (
                f"{IN_POD}: interface.routes[0]: no route to 203.0.113.0/24 by way of 10.99.0.1: Network is unreachable"
            )
            assert wanted in done.stderr


def test_a_pod_network_without_ipv6_lacks_only_unrequested_addresses(the_nic: Nic, pod: int) -> None:
    ip("address", "add", "fd00:7::9/64", "dev", the_nic.name)
    off = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
    subprocess.run(["nsenter", f"--net=/proc/{pod}/ns/net", "sh", "-c", off], check=True)
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert (done.returncode, done.stderr) == (0, "")
    assert addresses(links(pod)[IN_POD]) == ["192.0.2.7/24"]


def test_a_name_that_the_pod_has_already(the_nic: Nic, pod: int) -> None:
    ip("link", "add", IN_POD, "type", "veth", "peer", "name", "net2", inside=pod)
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, pod)
    assert done.returncode == 1 and f"the pod's network has another interface {IN_POD}" in done.stderr
    assert (NET / the_nic.name).exists()


def test_an_interface_of_the_same_name_that_is_not_the_nics_stays(
    the_nic: Nic, pod: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    agent = the_nic.new_agent()
    # As /sys shows it on a host that is simulated, or not this one.
    monkeypatch.setattr(agent.interfaces, "hardware_address", lambda name: "02:00:00:00:00:01")
    with answered(agent):
        done = the_nic.hook(outcome, pod)
    assert done.returncode == 1 and "neither on the host nor" in done.stderr
    assert (NET / the_nic.name).exists()


def test_the_network_of_the_host_is_not_a_container(the_nic: Nic) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    with answered(the_nic.agent):
        done = the_nic.hook(outcome, os.getpid())
    assert done.returncode == 1 and "leave interface.name out for pods with hostNetwork" in done.stderr
    assert (NET / the_nic.name).exists()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"claim": "b"}, "has no such interface"),
        ({"claim": "../a"}, "/a"),
        ({"key": "nic-1"}, "has no such interface"),
        ({"key": "../net/nic-0"}, "is not a device name"),
        ({"pid": 2**31 - 1}, "cannot be opened: No such file"),
        ({"pid": "1"}, "invalid"),
        ({"cgroup": "x"}, "invalid"),
    ],
)
def test_a_request_is_validated_before_any_change(the_nic: Nic, pod: int, ask: dict[str, Any], message: str) -> None:
    the_nic.prepare(name=IN_POD)
    line = json.dumps({"claim": "a", "key": "nic-0", "task": TASK, "pid": pod} | ask)
    with pytest.raises(PermanentError, match=message):
        the_nic.agent.mover.move(line.encode())
    assert (NET / the_nic.name).exists() and IN_POD not in links(pod)


def test_a_claim_that_is_gone_or_keeps_its_interface_on_the_host_moves_nothing(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    the_nic.agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    with answered(the_nic.agent):
        assert "has no such interface" in the_nic.hook(outcome, pod).stderr
        the_nic.prepare(mtu=1400)
        assert "has no such interface" in the_nic.hook(outcome, pod).stderr
    assert (NET / the_nic.name).exists()


def test_a_container_waits_for_an_agent_that_is_being_started(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    agent = the_nic.new_agent()
    path, ready = agent.hook.socket, agent.hook.socket.with_name("ready")
    with answered(agent, ready), ThreadPoolExecutor(1) as pool, socket.socket(socket.AF_UNIX) as earlier:
        # An earlier agent stops before it answers: from then on the hook tries again.
        earlier.bind(os.fspath(path))
        earlier.listen()
        earlier.settimeout(DEADLINE_S)
        waiting = pool.submit(the_nic.hook, outcome, pod)
        earlier.accept()[0].close()
        earlier.close()
        path.unlink()
        # One step, because the hook tries again for 5 s only.
        path.hardlink_to(ready)
        done = waiting.result()
    path.unlink()
    assert (done.returncode, done.stderr) == (0, "")
    assert IN_POD in links(pod)
    began = time.monotonic()
    done = the_nic.hook(outcome, pod)
    assert done.returncode == 1 and "is it running?" in done.stderr
    assert time.monotonic() - began > 2


def test_containers_of_a_real_runtime(the_nic: Nic, tmp_path: Path) -> None:
    runtime, rootfs, cdi = require_runtime(tmp_path)
    outcome = the_nic.prepare(name=IN_POD, addresses=["10.7.0.5/24"])
    device = Device("nic-0", "nic", "mellanox", ADDRESS, {}, identity={"ifname": the_nic.name})
    edits = EditProviders(the_nic.host, directories=[cdi]).edits(device).with_setup(outcome.edits["nic-0"])
    spec = build_spec(
        "dra-agent.internal",
        ClaimRef("a", "default", "net"),
        [SpecDevice(ClaimDevice("n/nic", device.name, ("nic",)), device, edits)],
    )
    SpecDirectory(cdi, "dra-agent.internal").write("a", spec.data)
    assert json.loads(spec.data)["cdiVersion"] == "0.3.0", "runtimes of any age read it"
    script = f"echo $DRA_AGENT_DEVICE_NIC_0_IFNAME; ip -o -4 address show dev {IN_POD}"
    command = runtime.command(spec.ids[0], rootfs, ["/bin/busybox", "sh", "-c", script])

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    refused = run()
    assert refused.returncode != 0 and "dra-agent-hook" in refused.stderr and not refused.stdout
    with answered(the_nic.agent):
        done = run()
    assert done.stdout.startswith(f"{IN_POD}\n") and "inet 10.7.0.5/24" in done.stdout, done.stderr


def test_other_interfaces_of_a_device_are_not_moved(the_nic: Nic, pod: int) -> None:
    outcome = the_nic.prepare(name=IN_POD)
    # As a card in switchdev mode shows its own interface and those that stand for its virtual functions.
    agent = the_nic.new_agent()
    agent.interfaces.of = lambda address: [the_nic.peer, *([the_nic.name] if (NET / the_nic.name).exists() else [])]  # type: ignore[method-assign]
    with answered(agent):
        assert the_nic.hook(outcome, pod).returncode == 0
    assert (NET / the_nic.peer).exists() and not (NET / the_nic.name).exists()
    assert links(pod)[IN_POD]["address"] == the_nic.hardware
