"""The fake nvidia-cuda-mps-control, run as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_agent.device_setup.mps.daemon import MpsDaemon
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.host import Host
from dra_simulate import build_machine, nvml
from dra_simulate import mps as mps_tool
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import GIB, H100_SXM
from dra_simulate.parts.nvidia import gpu
from eventually import DEADLINE_S, eventually

PAIR = Machine(
    "two",
    "for tests",
    (NumaNode("0-3", 8 * GIB, (10,)),),
    (HostBridge("pci0000:00", 0, tuple(gpu(f"0000:0{n + 1}:00.0", H100_SXM, n, machine="two") for n in range(2))),),
    nvidia=NvidiaDriver("615.71", 13040),
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build_machine(PAIR, tmp_path / "two")


@pytest.fixture
def uuid(host: Host) -> str:
    return nvml.read(host.sysfs.parent / "lib").devices[0].uuid


class Mps:
    """One directory of pipes."""

    def __init__(self, host: Host, folder: Path, visible: str) -> None:
        self.program = host.sysfs.parent / "lib" / mps_tool.CONTROL
        self.pipes = folder
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": visible,
        }

    def start(self, *options: str) -> int:
        command = [str(self.program), "-d", *options]
        return subprocess.run(command, env=self.environment, timeout=120, check=False).returncode

    def command(self, command: str, timeout: float = DEADLINE_S) -> tuple[int, str]:
        done = subprocess.run(
            [self.program],
            input=command + "\n",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout.strip()

    @property
    def pid(self) -> int:
        return int((self.pipes / "nvidia-cuda-mps-control.pid").read_text())


@pytest.fixture
def mps(host: Host, uuid: str, tmp_path: Path) -> Iterator[Callable[[str], Mps]]:
    made: list[Mps] = []

    def make(name: str) -> Mps:
        made.append(Mps(host, tmp_path / name, uuid))
        return made[-1]

    yield make
    mps_tool.clear_faults(host.sysfs.parent)
    for one in made:
        if one.command("quit")[0] and (one.pipes / "nvidia-cuda-mps-control.pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)


def test_a_daemon_keeps_its_settings(mps: Callable[[str], Mps], uuid: str) -> None:
    one = mps("a" * 120)  # longer than the name of a socket may be
    assert one.command("get_server_list")[0] == 1, "no daemon runs"
    assert one.start() == 0
    assert one.start() == 1, "one for each directory"
    assert one.command("set_default_active_thread_percentage 30") == (0, "30.0")
    assert one.command("get_default_active_thread_percentage") == (0, "30.0")
    assert one.command("set_default_device_pinned_mem_limit 0 10G") == (0, "")
    assert one.command(f"get_default_device_pinned_mem_limit {uuid}") == (0, "10G")
    for wrong in (
        "set_default_active_thread_percentage 101",
        "set_default_device_pinned_mem_limit 1 10G",
        "set_default_device_pinned_mem_limit 0 much",
    ):
        assert one.command(wrong)[1].startswith("Invalid argument")
    assert one.command("make_coffee")[1] == "Unknown command: make_coffee"
    log = (one.pipes / "log/control.log").read_text()
    assert "Received command: set_default_device_pinned_mem_limit 0 10G" in log


def test_two_directories_are_two_daemons(mps: Callable[[str], Mps]) -> None:
    one, other = mps("one"), mps("other")
    assert (one.start(), other.start()) == (0, 0)
    one.command("set_default_active_thread_percentage 10")
    assert other.command("get_default_active_thread_percentage") == (0, "100.0")


def test_quitting_takes_the_servers_along(mps: Callable[[str], Mps]) -> None:
    one = mps("one")
    one.start()
    assert one.command("get_server_list") == (0, "")
    one.command("start_server -uid 0")
    server = int(one.command("get_server_list")[1])
    os.kill(server, 0)
    pid = one.pid
    assert one.command("quit") == (0, "")
    assert ended(server) and ended(pid)
    assert one.command("get_server_list")[0] == 1
    assert not (one.pipes / "control").exists()
    assert one.start() == 0, "and a new one may begin"


def test_a_killed_daemon_leaves_its_files_and_another_can_start(mps: Callable[[str], Mps]) -> None:
    one = mps("one")
    one.start()
    one.command("start_server -uid 0")
    server = int(one.command("get_server_list")[1])
    os.kill(one.pid, signal.SIGKILL)
    assert ended(server)
    assert (one.pipes / "control").exists()
    assert one.command("get_server_list")[0] == 1
    assert one.start() == 0
    assert one.command("get_default_active_thread_percentage") == (0, "100.0")


def test_injected_faults_occur(mps: Callable[[str], Mps], host: Host) -> None:
    root, one = host.sysfs.parent, mps("one")
    mps_tool.inject_fault(root, "start", "fail")
    assert (one.start(), one.start()) == (1, 0)
    mps_tool.inject_fault(root, "set_default_active_thread_percentage", "ignore")
    assert one.command("set_default_active_thread_percentage 20") == (0, "")
    mps_tool.inject_fault(root, "get_default_active_thread_percentage", None, milliseconds=300)
    began = time.monotonic()
    assert one.command("get_default_active_thread_percentage") == (0, "100.0")
    assert time.monotonic() - began >= 0.3
    mps_tool.inject_fault(root, "get_server_list", "fail", times=2)
    assert [one.command("get_server_list")[1] for _ in range(3)] == ["Failed to get_server_list"] * 2 + [""]
    mps_tool.inject_fault(root, "get_server_list", "crash")
    pid = one.pid
    assert one.command("get_server_list")[1] == ""
    assert ended(pid)
    assert one.start() == 0
    mps_tool.inject_fault(root, "quit", "hang")
    with pytest.raises(subprocess.TimeoutExpired):
        one.command("quit", timeout=0.5)
    os.kill(one.pid, signal.SIGKILL)


def test_a_daemon_whose_directory_is_gone_ends(mps: Callable[[str], Mps]) -> None:
    one = mps("one")
    one.start()
    pid = one.pid
    (one.pipes / "control").unlink()
    assert ended(pid)


def ended(pid: int) -> bool:
    def gone() -> bool:
        try:
            # A zombie that its new parent has not waited for has ended too.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return eventually(gone)


def test_a_second_user_waits_without_the_option(mps: Callable[[str], Mps]) -> None:
    one = mps("one")
    assert one.start() == 0
    assert one.command("connect 1000") == (0, "connected as user 1000")
    assert one.command("connect 1000") == (0, "connected as user 1000")
    assert one.command("connect 1001") == (0, "pending: the server is of user 1000")


@pytest.mark.parametrize("option", ["-M", "-multiuser-server"])
def test_all_users_share_a_server_with_the_option(mps: Callable[[str], Mps], option: str) -> None:
    one = mps("one")
    assert one.start(option) == 0
    assert {one.command(f"connect {uid}")[1] for uid in (1000, 1001)} == {"connected as user 0"}


def test_an_old_program_does_not_know_the_option(mps: Callable[[str], Mps], host: Host) -> None:
    mps_tool.inject_fault(host.sysfs.parent, "multiuser", "fail", times=None)
    one = mps("one")
    assert one.start("-multiuser-server") == 1
    assert one.start() == 0


@pytest.fixture
def short() -> Iterator[Path]:
    """Pipes have short paths; pytest's folders do not."""
    with tempfile.TemporaryDirectory(prefix="mps-") as path:
        yield Path(path)


def test_the_agent_serves_all_users_where_the_program_can(
    host: Host, uuid: str, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def connect(state: str) -> set[str]:
        paths = MpsPaths.of(short / state, host.dev, "gpu")
        for folder in (paths.pipe, paths.log):
            folder.mkdir(parents=True)
        program = host.sysfs.parent / "lib" / mps_tool.CONTROL
        daemon = MpsDaemon(program, paths, uuid, own_shm=False, proc=Path("/proc"), deadline=DEADLINE_S)
        daemon.start()
        client = Mps(host, paths.pipe, uuid)
        client.environment["CUDA_MPS_LOG_DIRECTORY"] = str(paths.log)
        try:
            return {client.command(f"connect {uid}")[1].partition(":")[0] for uid in (1000, 1001)}
        finally:
            daemon.quit()

    assert connect("a") == {"connected as user 0"}
    assert not caplog.records
    mps_tool.inject_fault(host.sysfs.parent, "multiuser", "fail", times=None)
    assert connect("b") == {"connected as user 1000", "pending"}
    assert "one user at a time" in caplog.text
