"""An agent that cannot see every process of its host never reports that no process has a device open."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_agent.deadline import Deadline
from dra_agent.device_setup.open_files import (
    DeviceNode,
    class_node,
    device_nodes,
    function_nodes,
    processes_holding,
    refuse_holders,
    require_unused,
)
from dra_agent.driver_root import DriverRoot
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.processes.open_file import FileIdentity, identity_of
from dra_agent.processes.stat import read_stat
from dra_agent.processes.visibility import hidden_processes_reason
from eventually import eventually

NODE = DeviceNode("/dev/accelerator0")
IN_TIME = Deadline(math.inf)
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
    require_unused(host, [NODE], "device a", IN_TIME)


@pytest.mark.parametrize(
    ("where", "reason"), [(in_a_pod, "not in the host's process namespace"), (hidden, "may not read processes")]
)
def test_hidden_processes_are_an_error_with_a_hint(host: Host, where: Callable[[Host], None], reason: str) -> None:
    where(host)
    assert reason in hidden_processes_reason(host)
    with pytest.raises(RetryableError, match=rf"a process has {NODE} open: .*{reason}.*hostPID.*devices\.conf"):
        require_unused(host, [NODE], "device a", IN_TIME)
    require_unused(host, [], "device a", IN_TIME)  # without a node there is nothing to have open


def test_a_visible_process_is_named_also_with_hidden_ones(host: Host) -> None:
    in_a_pod(host)
    (host.proc / "4711/fd").mkdir(parents=True)
    (host.proc / "4711/comm").write_text("train\n")
    (host.proc / "4711/fd/3").symlink_to(host.dev / "accelerator0")
    with pytest.raises(RetryableError, match=r"it is busy: train \(process 4711\) has /dev/accelerator0 open"):
        require_unused(host, [NODE], "device a", IN_TIME, "it is busy")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_of_a_container_is_recognized_by_its_proc() -> None:
    code = (
        "from dra_agent.processes.visibility import hidden_processes_reason as reason;"
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
            assert [holder.pid for holder in processes_holding(real, [NODE], IN_TIME).found] == [process.pid]
        finally:
            process.kill()


@contextmanager
def a_process(body: str, *arguments: object) -> Iterator[int]:
    """Run Python code that prints a line when it is ready and then waits; its process ends with the block."""
    code = "import ctypes, os, sys, threading\nlibc = ctypes.CDLL(None)\n" + textwrap.dedent(body)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline(), "it has ended"
            yield process.pid
        finally:
            process.kill()


FIRST_THREAD_ENDS = """
    file = open(sys.argv[1])
    started = threading.Event()
    threading.Thread(target=lambda: started.set() or sys.stdin.read()).start()
    started.wait()
    print(flush=True)
    libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit(2) of this thread only
"""
THREAD_WITH_OTHER_FILES = """
    CLONE_FILES = 0x400
    def work():
        assert libc.unshare(CLONE_FILES) == 0
        file = open(sys.argv[1])
        print(flush=True)
        sys.stdin.read()
    threading.Thread(target=work).start()
"""
OPENS_A_FILE = """
    file = open(sys.argv[1])
    print(flush=True)
    sys.stdin.read()
"""


def test_a_process_whose_first_thread_has_ended_is_found(host: Host) -> None:
    with a_process(FIRST_THREAD_ENDS, host.dev / "accelerator0") as pid:
        eventually(lambda: (read_stat(pid) or pytest.fail("it has ended")).state == "Z")
        assert [holder.pid for holder in processes_holding(Host(dev=host.dev), [NODE], IN_TIME).found] == [pid]
        stat = read_stat(pid)
        assert stat is not None and not stat.has_ended


def test_a_thread_with_another_table_of_files_is_found(host: Host) -> None:
    with a_process(THREAD_WITH_OTHER_FILES, host.dev / "accelerator0") as pid:
        assert [holder.pid for holder in processes_holding(Host(dev=host.dev), [NODE], IN_TIME).found] == [pid]


def test_a_device_is_found_by_its_number(host: Host) -> None:
    """The host has no node of it in /dev, or a container has another one."""
    node = DeviceNode("/dev/accelerator1", (1, 7))
    with a_process(OPENS_A_FILE, "/dev/full") as pid:
        holders = processes_holding(Host(dev=host.dev), [node], IN_TIME).found
        assert [(holder.pid, holder.node) for holder in holders if holder.pid == pid] == [(pid, node.path)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_node_that_was_made_elsewhere_is_found(host: Host, tmp_path: Path) -> None:
    here, elsewhere = host.dev / "accelerator1", tmp_path / "elsewhere"
    try:
        for path in (here, elsewhere):
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))
        elsewhere.open().close()
    except OSError as error:
        pytest.skip(f"no device nodes here: {error}")
    with a_process(OPENS_A_FILE, elsewhere) as pid:
        holders = processes_holding(Host(dev=host.dev), [DeviceNode("/dev/accelerator1")], IN_TIME).found
        assert pid in [holder.pid for holder in holders]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_block_device_is_not_the_character_device_with_its_number(host: Host, tmp_path: Path) -> None:
    """Both kinds have a device 1:7: /dev/full, and a RAM disk. The process has one of them open by a path elsewhere."""
    nodes = {stat.S_IFBLK: tmp_path / "ram7", stat.S_IFCHR: tmp_path / "full"}
    try:
        for kind, path in nodes.items():
            os.mknod(path, 0o600 | kind, os.makedev(1, 7))
    except OSError as error:
        pytest.skip(f"no device nodes here: {error}")
    character, block = DeviceNode("/dev/full7", (1, 7)), DeviceNode("/dev/ram7", (1, 7), is_block=True)
    files = host.proc / "4711/fd"
    files.mkdir(parents=True)
    for kind, path in nodes.items():
        (files / "3").symlink_to(path)
        expected = block if kind == stat.S_IFBLK else character
        assert [one.node for one in processes_holding(host, [character, block], IN_TIME).found] == [expected.path]
        (host.dev / "here").unlink(missing_ok=True)
        os.mknod(host.dev / "here", 0o600 | kind, os.makedev(1, 7))
        assert [one.node for one in processes_holding(host, [DeviceNode("/dev/here")], IN_TIME).found] == ["/dev/here"]
        (files / "3").unlink()
        (files / "3").symlink_to(nodes[stat.S_IFBLK if kind == stat.S_IFCHR else stat.S_IFCHR])
        assert processes_holding(host, [expected, DeviceNode("/dev/here")], IN_TIME).found == []
        (files / "3").unlink()


def test_a_node_of_the_driver_is_found(host: Host, tmp_path: Path) -> None:
    """The driver's container has its own /dev, and the host's has no node of the GPU."""
    (tmp_path / "driver/dev").mkdir(parents=True)
    (tmp_path / "driver/dev/nvidia0").touch()
    (tmp_path / "driver/dev/nvidiactl").touch()
    (host.proc / "4711/fd").mkdir(parents=True)
    (host.proc / "4711/fd/3").symlink_to(tmp_path / "driver/dev/nvidia0")
    root = DriverRoot(tmp_path / "driver", tmp_path / "driver")
    with_driver = dataclasses.replace(host, driver_root=root)
    assert [one.pid for one in processes_holding(with_driver, [DeviceNode("/dev/nvidia0")], IN_TIME).found] == [4711]


def test_a_process_whose_files_cannot_be_read_may_have_a_node_open(host: Host) -> None:
    (host.proc / "4711").mkdir()
    (host.proc / "4711/fd").touch()
    with pytest.raises(RetryableError, match=rf"a process has {NODE} open: .*open files of process 4711 \(Not a dir"):
        require_unused(host, [NODE], "device a", IN_TIME)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOTCONN, errno.ESTALE])
def test_a_file_system_of_another_user_hides_no_other_file(
    number: int, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # FUSE refuses root (EACCES) unless its user allows others.
    refused = tmp_path / "refused"
    refused.touch()

    def identity(path: Path | str) -> FileIdentity:
        if Path(path).resolve() == refused:
            raise OSError(number, os.strerror(number), str(path))
        return identity_of(path)

    monkeypatch.setattr("dra_agent.device_setup.open_files.identity_of", identity)
    files = host.proc / "4711/fd"
    files.mkdir(parents=True)
    (files / "3").symlink_to(refused)
    require_unused(host, [NODE], "device a", IN_TIME)
    (files / "4").symlink_to(host.dev / "accelerator0")
    with pytest.raises(RetryableError, match="4711"):
        require_unused(host, [NODE], "device a", IN_TIME)


def test_processes_that_are_not_read_in_time_may_have_a_node_open(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file takes 8 s to read."""
    now_s = [1000.0]

    def identity(path: Path | str) -> FileIdentity:
        now_s[0] += 8
        return identity_of(path)

    monkeypatch.setattr("dra_agent.device_setup.open_files.identity_of", identity)
    monkeypatch.setattr("dra_agent.deadline.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    for pid in (4711, 4712, 4713):
        (host.proc / f"{pid}/fd").mkdir(parents=True)
        for number in range(3):
            (host.proc / f"{pid}/fd/{number}").touch()
    require_unused(host, [], "device a", IN_TIME)  # without a node nothing is searched
    late = r"device a: it is busy: .*in use: .* not read the open files of 2 processes within 30 s; end processes"
    with pytest.raises(RetryableError, match=late):
        require_unused(host, [NODE], "device a", IN_TIME, "it is busy")
    for seconds, unread in (
        (60, "2 processes within 30 s"),
        (26, "3 processes within 10 s"),  # after the node itself, with 2 paths
        (-1, "4 processes within 0 s"),
    ):
        with pytest.raises(RetryableError, match=f"open files of {unread}"):
            require_unused(host, [NODE], "device a", Deadline.of(seconds))
    with pytest.raises(RetryableError, match="open files of 2 processes within"):
        refuse_holders(processes_holding(host, [NODE], IN_TIME), "device a")
    (host.proc / "4711/fd/4").symlink_to(host.dev / "accelerator0")
    with pytest.raises(RetryableError, match=rf"process 4711\) has {NODE} open; stop them"):
        require_unused(host, [NODE], "device a", IN_TIME)


def test_threads_are_not_searched_without_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has another table, without files."""
    now_s = [1000.0]

    def monotonic() -> float:
        now_s[0] += 1
        return now_s[0]

    monkeypatch.setattr("dra_agent.deadline.time", SimpleNamespace(monotonic=monotonic))
    (host.proc / "4711/fd").mkdir(parents=True)
    for thread in range(100, 200):
        (host.proc / f"4711/task/{thread}/fd").mkdir(parents=True)
    with pytest.raises(RetryableError, match="open files of 1 process within"):
        require_unused(host, [NODE], "device a", IN_TIME)


def test_files_without_a_path_are_not_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(path: Path | str) -> FileIdentity:
        assert str(path).endswith(("/5", "accelerator0")), "a socket is not a device node"
        return identity_of(path)

    monkeypatch.setattr("dra_agent.device_setup.open_files.identity_of", identity)
    (host.proc / "4711/fd").mkdir(parents=True)
    for number, target in enumerate(("socket:[123]", "pipe:[7]", "anon_inode:[eventpoll]")):
        (host.proc / f"4711/fd/{number}").symlink_to(target)
    (host.proc / "4711/fd/5").symlink_to(host.dev / "accelerator0")
    assert [one.pid for one in processes_holding(host, [NODE], IN_TIME).found] == [4711]


def test_the_kind_of_a_device_node_is_that_of_its_class(tmp_path: Path) -> None:
    host, address = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc"), "0000:01:00.0"
    for name, class_ in (("nvme0", "nvme"), ("nvme0/nvme0n1", "block"), ("nvme0/nvme0n1/nvme0n1p1", "block")):
        folder = host.sysfs / "bus/pci/devices" / address / "nvme" / name
        (host.sysfs / "class" / class_).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        (folder / "dev").write_text("259:0\n")
        (folder / "uevent").write_text(f"MAJOR=259\nMINOR=0\nDEVNAME={folder.name}\n")
        (folder / "subsystem").symlink_to(host.sysfs / "class" / class_)
        (host.sysfs / "class" / class_ / folder.name).symlink_to(folder)
    expected = [("/dev/nvme0", False), ("/dev/nvme0n1", True), ("/dev/nvme0n1p1", True)]
    assert [(node.path, node.is_block) for node in function_nodes(host, address)] == expected
    assert class_node(host, "block", "nvme0n1", "/dev/x") == DeviceNode("/dev/x", (259, 0), is_block=True)
    assert class_node(host, "nvme", "nvme0", "/dev/x") == DeviceNode("/dev/x", (259, 0))


def test_processes_that_cannot_be_listed_may_have_a_node_open(host: Host, tmp_path: Path) -> None:
    nowhere = dataclasses.replace(host, proc=tmp_path / "nowhere")
    with pytest.raises(RetryableError, match="nowhere: cannot determine what uses devices: No such file"):
        require_unused(nowhere, [NODE], "device a", IN_TIME)


def test_device_nodes_that_cannot_be_read_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, address = Host(sysfs=tmp_path / "sys"), "0000:01:00.0"
    (host.sysfs / "bus/pci/devices" / address / "drm/card0").mkdir(parents=True)
    assert function_nodes(host, address) == []

    def refused(path: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(RetryableError, match="cannot determine what uses devices: Too many open files"):
        function_nodes(host, address)


def test_device_nodes_are_those_of_uevent_files(tmp_path: Path) -> None:
    host, address = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc"), "0000:01:00.0"
    assert function_nodes(host, address) == []
    card = host.sysfs / "bus/pci/devices" / address / "drm/card0"
    card.mkdir(parents=True)
    (card / "dev").write_text("226:0\n")
    (card / "uevent").write_text("MAJOR=226\nMINOR=0\nDEVNAME=dri/card0\nDEVTYPE=drm_minor\n")
    assert function_nodes(host, address) == [DeviceNode("/dev/dri/card0", (226, 0))]


@pytest.mark.parametrize(
    ("vendor", "minor", "expected"),
    [
        ("nvidia", "3", [DeviceNode("/dev/nvidia3", (195, 3))]),
        ("nvidia", "3/../../sda", []),
        ("amd", "3", []),
        ("0x1bcf", "3", []),
    ],
)
def test_nodes_that_are_not_in_sys_have_the_minor_number_of_their_vendor(
    tmp_path: Path, vendor: str, minor: str, expected: list[DeviceNode]
) -> None:
    host, address = Host(sysfs=tmp_path / "sys", dev=tmp_path / "dev", proc=tmp_path / "proc"), "0000:01:00.0"
    device = Device("gpu-0000-01-00-0", "gpu", vendor, address, {}, identity={"minor": minor})
    assert device_nodes(host, device) == expected
