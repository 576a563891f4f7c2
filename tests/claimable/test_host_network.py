"""The network of a host over time: what is known while the kernel does not answer."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claimable.fake_kernel import END, ERROR, GETADDR, GETLINK, GETROUTE, FakeKernel, address, link, message, route
from dra_agent.claimable import kernel_network, network_files
from dra_agent.claimable.network import HostNetwork
from dra_agent.claimable.network_view import Interface, NetworkView
from dra_agent.claimable.use import host_use
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from eventually import DEADLINE_S, eventually

Write = Callable[[str, object], None]
Answer = Callable[[float, int], NetworkView]
OURS = NetworkView({"nic0": Interface("nic0"), "nic1": Interface("nic1", addresses=("10.1.2.3/24",))})


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    found = HostNetwork(Host(), budget=DEADLINE_S)
    yield found
    found.close()


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    monkeypatch.setattr(kernel_network, "read", answer)


def failing(error: OSError) -> Answer:
    def read(deadline: float, max_routes: int) -> NetworkView:
        raise error

    return read


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="no network interfaces here")
def test_the_kernel_of_this_host_answers(network: HostNetwork) -> None:
    problems: list[Diagnostic] = []
    view = network.view(problems)
    assert "lo" in view.interfaces
    assert view.incomplete is view.late is None and problems == []


def test_the_last_complete_view_stays_while_the_kernel_does_not_answer(
    network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda *_: OURS)
    assert network.view([]) == OURS
    answering(monkeypatch, failing(TimeoutError(errno.ETIMEDOUT, "")))
    for _ in range(2):
        problems: list[Diagnostic] = []
        view = network.view(problems)
        assert view.interfaces == OURS.interfaces and view.late is not None and view.incomplete is None
        assert host_use(view, "nic0") is None
        assert (use := host_use(view, "nic1")) is not None and use.code == "host-address"
        assert (use := host_use(view, "nic2")) is not None and f"not be read within {DEADLINE_S:g} s" in use.reason
        assert [(problem.where, problem.severity) for problem in problems] == [("rtnetlink", "warning")]
        assert "the last known state of 2 interfaces is used" in problems[0].message
    answering(monkeypatch, lambda *_: NetworkView({}))
    problems = []
    assert network.view(problems) == NetworkView({}) and problems == []


def test_a_claim_that_changes_an_interface_waits_for_an_answer(
    network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, lambda *_: OURS)
    assert network.present_use("nic0", "device nic-0") is None
    use = network.present_use("nic1", "device nic-0")
    assert use is not None and use.code == "host-address"
    answering(monkeypatch, failing(TimeoutError(errno.ETIMEDOUT, "")))
    late = f"^device nic-0: it is not known whether the host uses nic0: .* within {DEADLINE_S:g} s; the agent retries$"
    with pytest.raises(RetryableError, match=late):
        network.present_use("nic0", "device nic-0")
    answering(monkeypatch, lambda *_: OURS)
    assert network.present_use("nic0", "device nic-0") is None
    with pytest.raises(RetryableError, match="nic9: it is not among the interfaces of the host's network; the agent"):
        network.present_use("nic9", "device nic-0")


def test_a_use_that_an_incomplete_view_shows_is_known(network: HostNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    port = Interface("nic0", master="bond0")
    answering(monkeypatch, lambda *_: NetworkView({**OURS.interfaces, "nic0": port}, "the host has more than 2 routes"))
    use = network.present_use("nic0", "device nic-0")
    assert use is not None and use.reason == "nic0 is a port of bond0"
    for name in ("nic1", "nic2"):
        with pytest.raises(RetryableError, match="more than 2 routes"):
            network.present_use(name, "device nic-0")


def test_without_an_earlier_view_no_use_is_ruled_out(network: HostNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, failing(TimeoutError(errno.ETIMEDOUT, "")))
    problems: list[Diagnostic] = []
    view = network.view(problems)
    assert view.incomplete is not None
    use = host_use(view, "nic0")
    assert use is not None and use.code == "host-interface" and "it is not known whether" in use.reason
    assert "no interface can be claimed whose use is not known" in problems[-1].message
    assert problems[-1].severity == "warning"


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EAFNOSUPPORT, "RestrictAddressFamilies="), (errno.EPERM, "RestrictAddressFamilies="), (errno.EINTR, None)],
)
def test_an_error_of_the_kernel_is_a_warning_with_its_text(
    network: HostNetwork, monkeypatch: pytest.MonkeyPatch, number: int, hint: str | None
) -> None:
    answering(monkeypatch, lambda *_: OURS)
    network.view([])
    answering(monkeypatch, failing(OSError(number, os.strerror(number))))
    problems: list[Diagnostic] = []
    assert network.view(problems).late == f"the host's network could not be read: {os.strerror(number)}"
    assert (hint or "") in (problems[0].hint or "") and (problems[0].hint is None) == (hint is None)


def test_a_query_that_hangs_in_the_kernel_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = HostNetwork(Host(), budget=0.01)
    release, calls = threading.Event(), []

    def hang(deadline: float, max_routes: int) -> NetworkView:
        calls.append(max_routes)
        assert release.wait(DEADLINE_S)
        return NetworkView({})

    try:
        answering(monkeypatch, lambda *_: OURS)
        eventually(lambda: network.view([]).late is None)
        answering(monkeypatch, hang)
        for _ in range(3):
            view = network.view([])
            assert view.late is not None and view.interfaces == OURS.interfaces
        assert len(calls) == 1
        answering(monkeypatch, lambda *_: OURS)
        assert network.view([]).late is not None
        release.set()
        eventually(lambda: network.view([]) == OURS)
        assert len(calls) == 1
    finally:
        release.set()
        network.close()


def test_the_last_view_stays_if_no_thread_can_be_started(network: HostNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    answering(monkeypatch, lambda *_: OURS)
    monkeypatch.setattr("dra_agent.daemon_threads.IDLE_TIMEOUT_S", 0.0)
    network.view([])
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("network")])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    problems: list[Diagnostic] = []
    assert network.view(problems).interfaces == OURS.interfaces
    assert os.strerror(errno.EAGAIN) in problems[0].message


def test_a_view_with_too_many_routes_is_used_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeKernel({GETLINK: [link(2, "nic0") + END], GETROUTE: [route(2, 0) * 3 + END]}).install(monkeypatch)
    network = HostNetwork(Host(), budget=DEADLINE_S, max_routes=2)
    try:
        for _ in range(2):
            problems: list[Diagnostic] = []
            view = network.view(problems)
            assert view.incomplete == "the host has more than 2 routes" and view.late is None
            assert [problem.severity for problem in problems] == ["warning"]
            assert str(problems[0]).startswith("network: the host has more than 2 routes, so no interface can be")
        answering(monkeypatch, failing(TimeoutError(errno.ETIMEDOUT, "")))
        view = network.view([])
        assert view.incomplete is not None and view.late is None, "an incomplete view is not kept"
    finally:
        network.close()


def test_an_error_in_the_last_dump_does_not_leave_half_a_view(
    network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {GETLINK: [link(2, "nic0") + END], GETADDR: [address(2, "10.1.2.3", 24) + END]}
    FakeKernel(whole).install(monkeypatch)
    assert network.view([]).interfaces["nic0"].addresses == ("10.1.2.3/24",)
    refused = message(ERROR, struct.pack("=i", -errno.ENOBUFS) + bytes(16))
    FakeKernel({GETLINK: [link(3, "nic1") + END], GETROUTE: [refused]}).install(monkeypatch)
    view = network.view([])
    assert set(view.interfaces) == {"nic0"} and view.late is not None


def test_a_simulated_host_is_read_from_its_files(host: Host, write: Write) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    (host.sysfs / "class/net/eno1/master").symlink_to("../bond0")
    network = HostNetwork(host)
    problems: list[Diagnostic] = []
    assert network.view(problems).interfaces["eno1"].master == "bond0"
    assert problems == []
    (host.sysfs / "class/net/eno1/master").unlink()
    assert network.view(problems).interfaces["eno1"].master is None


def test_the_last_view_of_files_stays_while_they_cannot_be_read_in_time(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host.sysfs / "class/net/eno1").mkdir()
    network, reads = HostNetwork(host), []
    files = network_files.read

    def late(sysfs: Path, tables: Path, deadline: float, max_routes: int) -> NetworkView:
        reads.append(tables)
        return files(sysfs, tables, float("-inf"), max_routes)

    monkeypatch.setattr(network_files, "read", late)
    problems: list[Diagnostic] = []
    assert network.view(problems).incomplete == "the host's network could not be read within 2 s"
    assert (problems[0].where, len(reads)) == (str(host.proc / "net"), 1)
    monkeypatch.setattr(network_files, "read", files)
    known = network.view([])
    assert set(known.interfaces) == {"eno1"}
    monkeypatch.setattr(network_files, "read", late)
    assert network.view([]).interfaces == known.interfaces


def test_an_agent_in_another_network_namespace_reads_the_configured_tables(host: Host, write: Write) -> None:
    header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    write("proc/net/route", f"{header}\neth9\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    write("net/route", f"{header}\neno1\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    there = Host(sysfs=host.sysfs, dev=host.dev, proc=host.proc, net=host.proc.parent / "net")
    assert set(HostNetwork(host).view([]).interfaces) == {"eth9"}
    assert set(HostNetwork(there).view([]).interfaces) == {"eno1"}


def test_without_the_configured_tables_no_interface_can_be_claimed(host: Host, write: Write) -> None:
    write("sys/class/net/eno1/address", "02:00:00:00:00:01")
    there = Host(sysfs=host.sysfs, dev=host.dev, proc=host.proc, net=host.proc.parent / "nowhere")
    problems: list[Diagnostic] = []
    use = host_use(HostNetwork(there).view(problems), "eno1")
    assert use is not None and use.code == "host-interface"
    assert "none can be claimed" in problems[0].message and problems[0].where == str(there.net)
    write("nowhere/route", "Iface")
    host.proc.parent.joinpath("nowhere").chmod(0)
    use = host_use(HostNetwork(there).view([]), "eno1")
    assert use is not None and "can be read" in use.reason
    host.proc.parent.joinpath("nowhere").chmod(0o755)
    assert host_use(HostNetwork(there).view([]), "eno1") is None, "a host without routes needs none of them"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
def test_in_a_separate_network_namespace_no_interface_can_be_claimed() -> None:
    if not any((folder / "device").exists() for folder in Path("/sys/class/net").iterdir()):
        pytest.skip("no hardware interface here")
    code = (
        "from pathlib import Path\n"
        "from dra_agent.claimable.network import HostNetwork\n"
        "from dra_agent.claimable.use import host_use\n"
        "from dra_agent.host import Host\n"
        "view = HostNetwork(Host()).view(problems := [])\n"
        "uses = [host_use(view, path.name) for path in Path('/sys/class/net').iterdir()]\n"
        "assert uses and all(use.code == 'host-interface' for use in uses), uses\n"
        "print(problems[0])"
    )
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace can be made here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "another network namespace" in done.stdout and "--net-root" in done.stdout
