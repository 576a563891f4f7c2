"""An agent that cannot see every process of its host never reports that no process has a device open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.device_setup.open_files import nodes_of, processes_holding, require_unused
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.process_visibility import hidden_processes_reason

NODE = "/dev/accelerator0"
HOSTS, PODS = "pid:[4026531836]", "pid:[4026532201]"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accelerator0").touch()
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(HOSTS)
    (tmp_path / "proc/1/fd").mkdir(parents=True)
    return Host(dev=tmp_path / "dev", proc=tmp_path / "proc")


def in_a_pod(host: Host) -> None:
    (host.proc / "self/ns/pid").unlink()
    (host.proc / "self/ns/pid").symlink_to(PODS)


def hidden(host: Host) -> None:
    (host.proc / "1/fd").rmdir()


def test_a_node_is_unused_if_all_processes_are_visible(host: Host) -> None:
    assert hidden_processes_reason(host) == ""
    require_unused(host, [NODE], "device a")


@pytest.mark.parametrize(
    ("where", "reason"), [(in_a_pod, "not in the host's process namespace"), (hidden, "may not read processes")]
)
def test_hidden_processes_are_an_error_with_a_hint(host: Host, where: Callable[[Host], None], reason: str) -> None:
    where(host)
    assert reason in hidden_processes_reason(host)
    with pytest.raises(RetryableError, match=rf"a process has {NODE} open: .*{reason}.*hostPID.*devices\.conf"):
        require_unused(host, [NODE], "device a")
    require_unused(host, [], "device a")  # without a node there is nothing to have open


def test_a_visible_process_is_named_also_with_hidden_ones(host: Host) -> None:
    in_a_pod(host)
    (host.proc / "4711/fd").mkdir(parents=True)
    (host.proc / "4711/comm").write_text("train\n")
    (host.proc / "4711/fd/3").symlink_to(host.dev / "accelerator0")
    with pytest.raises(RetryableError, match=r"it is busy: train \(process 4711\) has /dev/accelerator0 open"):
        require_unused(host, [NODE], "device a", "it is busy")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_of_a_container_is_recognized_by_its_proc() -> None:
    code = (
        "from dra_agent.inventory.process_visibility import hidden_processes_reason as reason;"
        " from dra_agent.host import Host; print(reason(Host()))"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip(f"no process namespaces here: {done.stderr.strip()}")
    assert done.stdout == "the agent is not in the host's process namespace\n", done.stderr


def test_a_real_process_is_found(host: Host) -> None:
    real = Host(dev=host.dev)
    with (host.dev / "accelerator0").open("rb") as file, subprocess.Popen(["sleep", "600"], stdin=file) as process:
        try:
            assert [opener.pid for opener in processes_holding(real, [NODE])] == [process.pid]
        finally:
            process.kill()


def test_device_nodes_are_those_of_uevent_files(tmp_path: Path) -> None:
    host, address = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc"), "0000:01:00.0"
    assert nodes_of(host, address) == [] and nodes_of(host, address, "3") == ["/dev/nvidia3"]
    card = host.sysfs / "bus/pci/devices" / address / "drm/card0"
    card.mkdir(parents=True)
    (card / "dev").write_text("226:0\n")
    (card / "uevent").write_text("MAJOR=226\nMINOR=0\nDEVNAME=dri/card0\nDEVTYPE=drm_minor\n")
    assert nodes_of(host, address) == ["/dev/dri/card0"]
