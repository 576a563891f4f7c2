"""The store, the agent's lock, other drivers and NVIDIA's toolkit."""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
from pathlib import Path

import pytest

from doctor.conftest import Findings, Scanned
from dra_agent.conflicts import DeviceConflicts, SavedConflicts, save_conflicts
from dra_agent.doctor import CheckContext, OtherAgent, Severity, run_checks


def test_a_damaged_store_is_a_problem_and_stays_as_it_is(healthy_host: CheckContext, findings: Findings) -> None:
    store = healthy_host.state_dir / "objects.db"
    store.write_bytes(b"this was a database" * 100)
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.PROBLEM and finding.where == str(store)
    assert "file is not a database" in finding.message and "apply missing claims again" in finding.hint
    assert [path.name for path in healthy_host.state_dir.iterdir()] == ["objects.db"]


def test_an_intact_store_passes_without_new_files(healthy_host: CheckContext, findings: Findings) -> None:
    with sqlite3.connect(healthy_host.state_dir / "objects.db") as connection:
        connection.execute("CREATE TABLE objects (name TEXT)")
    connection.close()
    before = sorted(healthy_host.state_dir.iterdir())
    assert findings(healthy_host) == []
    assert sorted(healthy_host.state_dir.iterdir()) == before
    assert any(finding.message == "the stored claims are whole" for finding in run_checks(healthy_host))


def test_a_file_that_the_store_quarantined_is_reported(healthy_host: CheckContext, findings: Findings) -> None:
    (healthy_host.state_dir / "objects.db.corrupt-1").write_bytes(b"x")
    (finding,) = findings(healthy_host)
    assert finding.severity is Severity.WARNING and finding.where.endswith("objects.db.corrupt-1")
    assert "dra-agent claim holders" in finding.hint


def test_an_agent_that_holds_the_lock_and_does_not_listen_is_a_problem(
    healthy_host: CheckContext, findings: Findings
) -> None:
    lock = healthy_host.state_dir / "agent.lock"
    lock.write_text(f"{os.getpid()}\n")
    (ended,) = findings(healthy_host)
    assert ended.severity is Severity.PROBLEM and "no agent runs here, and one did" in ended.message
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        healthy_host.locks = healthy_host.state_dir.parent / "locks"
        healthy_host.locks.write_text(
            f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 00:1f:{lock.stat().st_ino} 0 EOF\nshort\n"
        )
        (finding,) = findings(healthy_host)
        # An agent in Kubernetes mode has no agent.sock.
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(healthy_host.state_dir / "reclaim.sock"))
            (healthy_host.state_dir / "reclaim.sock").chmod(0o600)
            server.listen()
            assert findings(healthy_host) == []
    assert finding.severity is Severity.PROBLEM and f"pid {os.getpid()}" in finding.message
    assert "read its log" in finding.hint


def test_other_drivers_of_the_same_devices_are_named(
    scanned: Scanned, findings: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examination = scanned()
    examination.kubelet_dir = tmp_path / "kubelet"
    plugins = tmp_path / "kubelet" / "device-plugins"
    plugins.mkdir(parents=True)
    monkeypatch.chdir(plugins)  # a socket's path may have 107 bytes
    for name in ("kubelet.sock", "nvidia-gpu.sock", "tpu.sock"):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    (plugins / "nvidia-checkpoint").write_text("no socket")
    registry = tmp_path / "kubelet" / "plugins_registry"
    registry.mkdir()
    monkeypatch.chdir(registry)
    drivers = ("hami-core-gpu.project-hami.io-reg.sock", "dra.net-reg.sock", "compute-domain.nvidia.com-reg.sock")
    for name in (*drivers, "dra.networking.k8s.aws-reg.sock", "dra-agent.internal-reg.sock"):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    finding, *of_drivers = sorted(findings(examination), key=lambda finding: finding.where)
    assert {found.where: found.message.split(" devices ")[0] for found in of_drivers} == {
        str(registry / drivers[0]): "a driver seems to advertise nvidia",
        str(registry / drivers[1]): "a driver seems to advertise mellanox",
    }
    assert finding.severity is Severity.WARNING and finding.where == str(plugins / "nvidia-gpu.sock")
    assert "nvidia devices too" in finding.message and "inventory.exclude" in finding.hint


def test_saved_conflicts_are_reported(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    conflicts = DeviceConflicts(dict.fromkeys(("gpu-0", "gpu-1"), "device plugin nvidia.com/gpu"))
    save_conflicts(examination.state_dir, SavedConflicts(conflicts))
    (finding,) = findings(examination)
    assert (finding.severity, finding.where) == (Severity.WARNING, "device plugin nvidia.com/gpu")
    assert "2 devices of this node too" in finding.message and "gpu-0, gpu-1" in finding.message
    save_conflicts(examination.state_dir, SavedConflicts(conflicts, published=True))
    (finding,) = findings(examination)
    assert finding.severity is Severity.PROBLEM and "two pods" in finding.message
    examination.inventory = None
    assert any(found.where == "device plugin nvidia.com/gpu" for found in run_checks(examination))


def test_withheld_devices_and_managers_that_are_not_judged_are_reported(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    unmatched = "its slices do not identify the devices"
    conflicts = DeviceConflicts(
        {"gpu-0": "driver gpu.nvidia.com", "gpu-1": "driver gpu.nvidia.com"}, {"gpu-1": unmatched}, ("driver x.y",)
    )
    save_conflicts(examination.state_dir, SavedConflicts(conflicts))
    listed, withheld, unjudged = findings(examination)
    assert listed.where == withheld.where == "driver gpu.nvidia.com"
    assert listed.message == "advertises 1 device of this node too, so they are not published: gpu-0"
    assert withheld.message == (
        f"may advertise 1 device of this node too ({unmatched}), so they are not published: gpu-1"
    )
    assert (unjudged.severity, unjudged.where) == (Severity.WARNING, "driver x.y")
    assert "is not judged" in unjudged.message and "inventory.exclude" in unjudged.hint


def test_two_agents_for_the_same_devices_are_both_named(scanned: Scanned, findings: Findings, tmp_path: Path) -> None:
    examination = scanned()
    (tmp_path / "theirs").mkdir()
    gpu, nic = "gpu-0000-1b-00-0", "nic-0000-18-00-0"
    theirs = OtherAgent("nvidia.example.com", tmp_path / "theirs", 4711, (gpu, nic))
    examination.other_agents = (theirs,)
    (finding,) = findings(examination)
    assert finding.severity is Severity.PROBLEM and f"{gpu}, {nic}" in finding.message
    assert finding.where == (
        f"driver dra-agent.internal (state directory {examination.state_dir}) and "
        f"driver nvidia.example.com (state directory {tmp_path / 'theirs'}, pid 4711)"
    )
    assert "inventory.exclude" in finding.hint
    # One of them does not publish what the other one does: no claim can get it twice.
    save_conflicts(theirs.state_dir, SavedConflicts(DeviceConflicts({gpu: "driver dra-agent.internal"})))
    (finding,) = findings(examination)
    assert finding.severity is Severity.PROBLEM and f"both publish {nic}" in finding.message
    save_conflicts(
        theirs.state_dir, SavedConflicts(DeviceConflicts(dict.fromkeys((gpu, nic), "driver dra-agent.internal")))
    )
    (finding,) = findings(examination)
    assert finding.severity is Severity.WARNING and gpu in finding.message
    save_conflicts(theirs.state_dir, SavedConflicts(DeviceConflicts({gpu: "x", nic: "x"}), published=True))
    assert findings(examination)[0].severity is Severity.PROBLEM


def test_agents_with_different_devices_are_not_a_finding(scanned: Scanned, findings: Findings, tmp_path: Path) -> None:
    examination = scanned()
    examination.other_agents = (OtherAgent("nics.example.com", tmp_path, 4711, ()),)
    assert findings(examination) == []
    examination.other_agents = (OtherAgent("nics.example.com", tmp_path, 4711, None),)
    (finding,) = findings(examination)
    assert finding.severity is Severity.WARNING and "cannot determine" in finding.message and "root" in finding.hint
