"""What a container's root does to the pipes and the shared memory that it is given, and a local user to /dev/shm."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deadlines import a_minute
from device_setup.test_mps import World, kill, share, world
from dra_agent.command import HostCommand
from dra_agent.device_setup.mps import paths
from dra_agent.device_setup.mps.paths import MpsPaths
from dra_agent.device_setup.shares import ShareConfig
from dra_agent.errors import RetryableError
from eventually import DEADLINE_S, eventually

__all__ = ["world"]

PIDFILE = "nvidia-cuda-mps-control.pid"
NOBODY = 65534
RENAME_EXCHANGE = 2
LONG_S = DEADLINE_S
"""What nothing here may take: each step has a deadline of seconds, and the attack would last for ever."""
TRIES = 1000
"""What a check of a path loses to an exchange after some dozens."""
DEEP = 3000
"""Levels of folders: more than Python calls itself."""


def fifo(pidfile: Path) -> None:
    os.mkfifo(pidfile)


def endless(pidfile: Path) -> None:
    pidfile.symlink_to("/dev/zero")


def outside(pidfile: Path) -> None:
    pidfile.symlink_to("/etc/passwd")


def huge(pidfile: Path) -> None:
    pidfile.touch()
    os.truncate(pidfile, 1 << 40)


def folder(pidfile: Path) -> None:
    pidfile.mkdir()


@pytest.mark.parametrize("attack", [fifo, endless, outside, huge, folder])
def test_a_pidfile_of_a_container_keeps_no_claim_from_being_released(
    world: World, attack: Callable[[Path], None]
) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    pidfile = world.place().pipe / PIDFILE
    pidfile.unlink()
    attack(pidfile)
    world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    eventually(lambda: is_gone(pid))
    assert not world.place().pipe.exists()


def test_a_container_chooses_no_process_to_be_killed(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    # Everything that the daemon's process has, and the agent could look for.
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(world.place().pipe)}
    victim = subprocess.Popen(["/bin/sleep", "600"], env=environment)
    try:
        (world.place().pipe / PIDFILE).unlink()
        (world.place().pipe / PIDFILE).write_text(f"{victim.pid}\n")
        kill(pid)
        world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("restarted", [False, True], ids=["the same agent", "the next agent"])
def test_a_daemon_that_a_container_keeps_from_hearing_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr("dra_agent.device_setup.mps.daemon.QUIT_TIMEOUT_S", 0.2)
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    pid = world.pid()
    assert pid is not None
    for name in ("control", PIDFILE):
        (world.place().pipe / name).unlink()
    if restarted:
        world.again()
    world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    eventually(lambda: is_gone(pid))


def test_folders_without_end_are_removed(world: World) -> None:
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    handle = os.open(world.place().pipe, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (world.place().pipe / "out").symlink_to(world.path)
    world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    place = world.place()
    assert not place.pipe.exists(), "out of the way at once"

    def is_removed() -> bool:
        place.remove()
        return not list(place.folder.glob(".pipe*"))

    eventually(is_removed)
    assert world.host.dev.parent.exists() and (world.path / "lib").exists(), "no link was followed"


def test_a_program_that_writes_without_end_is_stopped(tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    endless.chmod(0o755)
    with pytest.raises(RetryableError, match="wrote more than"):
        HostCommand(endless, LONG_S).run([])


def squatted(path: Path) -> None:
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)


def linked(path: Path) -> None:
    other = path.parent.parent / "others"
    other.mkdir(exist_ok=True)
    path.symlink_to(other)


def piped(path: Path) -> None:
    os.mkfifo(path)


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder with a short path, as sockets need it, that other users can pass through."""
    path = Path(tempfile.mkdtemp(prefix="mps-"))
    path.chmod(0o755)
    (path / "dev/shm").mkdir(parents=True)
    (path / "dev/shm").chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder takes root")
@pytest.mark.parametrize("attack", [squatted, linked, piped])
@pytest.mark.parametrize("below", [False, True], ids=["parent", "device"])
def test_a_folder_that_is_not_the_agents_is_refused(base: Path, attack: Callable[[Path], None], below: bool) -> None:
    shm = base / "dev/shm"
    place = MpsPaths.of(base / "state", base / "dev", "gpu-a")
    if below:
        place.shm.parent.mkdir()
    attack(place.shm if below else place.shm.parent)
    with pytest.raises(RetryableError, match="remove it") as refused:
        place.make()
    assert str(shm) in str(refused.value)
    if (base / "dev/others").exists():
        assert (base / "dev/others").stat().st_mode & 0o7777 == 0o755


def test_shared_memory_is_where_only_the_agent_writes(base: Path) -> None:
    place = MpsPaths.of(base / "state", base / "dev", "gpu-a")
    before = os.umask(0)
    try:
        place.make()
    finally:
        os.umask(before)
    assert place.shm == base / "dev/shm/dra-agent/gpu-a"
    assert place.shm.parent.stat().st_mode & 0o7777 == 0o700
    assert place.shm.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="two users take root")
def test_a_local_user_reaches_no_shared_memory(base: Path) -> None:
    place = MpsPaths.of(base / "state", base / "dev", "gpu-a")
    place.make()
    (place.shm / "of-a-claim").write_text("secret")
    (place.shm / "of-a-claim").chmod(0o644)
    for command in (["cat", str(place.shm / "of-a-claim")], ["touch", str(place.shm / "of-a-user")]):
        as_nobody = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *command]
        done = subprocess.run(as_nobody, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "Permission denied" in done.stderr


@pytest.mark.parametrize("shm_on_disk", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize("ending", ["released", "agent died", "daemon died", "never released"])
def test_a_share_gets_no_file_of_an_earlier_one(world: World, ending: str, shm_on_disk: bool) -> None:
    if not shm_on_disk:
        (world.host.dev / "shm").mkdir(parents=True)
    place = world.place()
    assert place.shm.is_relative_to(world.host.dev) is not shm_on_disk
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    for folder in (place.shm, place.pipe):
        (folder / "of-the-first").write_text("secret")
    if ending == "agent died":
        world.modes.fails = True  # the release began, and did not come to the files
        with pytest.raises(RetryableError):
            world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
        world.modes.fails = False
        world.again()
    elif ending == "daemon died":
        pid = world.pid()
        assert pid is not None
        kill(pid)
        world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    elif ending == "never released":
        (world.path / "state/mps/gpu-a.json").unlink()  # an administrator removed a damaged one
        world.again()
    else:
        world.setup.tear_down("uid-1", ["gpu-a/share-1"], None, a_minute())
    world.setup.set_up("uid-2", [share(2)], ShareConfig(), None, a_minute())
    assert not (place.shm / "of-the-first").exists() and not (place.pipe / "of-the-first").exists()
    assert world.pid() is not None and world.mps.supervise() == {}


def test_a_share_waits_where_files_of_an_earlier_one_cannot_be_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = world.place()
    place.make()
    (place.shm / "of-an-earlier-one").write_text("secret")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(paths, "remove", refuse)
    with pytest.raises(RetryableError, match="files of an earlier share"):
        world.setup.set_up("uid-2", [share(2)], ShareConfig(), None, a_minute())
    assert world.pid() is None


def test_logs_that_clients_fill_have_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MAX_LOG_BYTES", 1000)
    world.setup.set_up("uid-1", [share(1)], ShareConfig(), None, a_minute())
    log = world.place().log / "server.log"
    (world.place().log / "outside.log").symlink_to(world.path / "lib/nvidia-cuda-mps-control")
    with log.open("a") as daemon:  # as a daemon has it open
        daemon.write("first line\n" * 500 + "last line\n")
        daemon.flush()
        assert world.mps.supervise() == {}
        daemon.write("next line\n")
    assert log.read_text() == "next line\n"
    kept = (world.place().log / "server.log.old").read_text()
    assert kept.endswith("first line\nlast line\n") and len(kept) <= 1000
    assert (world.path / "lib/nvidia-cuda-mps-control").stat().st_size > 1000, "no link is followed"


EXCHANGES = f"""
import ctypes, os, sys
os.setgid({NOBODY}); os.setuid({NOBODY})
libc = ctypes.CDLL(None)
shm, victim = sys.argv[1:]
name, link = os.path.join(shm, "dra-agent"), os.path.join(shm, "decoy")
os.mkdir(name); os.symlink(victim, link)
print("ready", flush=True)
while True:
    libc.renameat2(-100, name.encode(), -100, link.encode(), {RENAME_EXCHANGE})
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="two users take root")
def test_an_exchange_between_two_steps_changes_no_folder_of_root(base: Path) -> None:
    """A local user exchanges the folder for a link to one of root's, as fast as it can."""
    shm, victim = base / "dev/shm", base / "victim"
    victim.mkdir(mode=0o700)
    (victim / "gpu-a").mkdir(mode=0o700)
    place = MpsPaths.of(base / "state", base / "dev", "gpu-a")
    command = [sys.executable, "-c", EXCHANGES, str(shm), str(victim)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as attacker:
        try:
            assert attacker.stdout is not None and attacker.stdout.readline() == b"ready\n"
            for _ in range(TRIES):
                with pytest.raises(RetryableError):
                    place.make()
            assert attacker.poll() is None
        finally:
            attacker.kill()
    assert [path.stat().st_mode & 0o7777 for path in (victim, victim / "gpu-a")] == [0o700, 0o700]


def test_the_kernel_can_exchange(tmp_path: Path) -> None:
    """Or the test above would try nothing."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("/")
    exchanged = ctypes.CDLL(None).renameat2(
        -100, os.fsencode(tmp_path / "a"), -100, os.fsencode(tmp_path / "b"), RENAME_EXCHANGE
    )
    assert exchanged == 0 and (tmp_path / "a").is_symlink()
