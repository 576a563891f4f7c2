"""Locks by name: who waits is told by its deadline, few wait for who is slow, and other processes are kept out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.prepare.locks import (
    MAX_CACHED_FILES,
    MAX_SETUP_WAITERS,
    MAX_WAITERS,
    SLOW_AFTER_S,
    KeyedLocks,
    LockedError,
    setup_locks,
)

GENEROUS_S = 60.0


def far() -> Deadline:
    return Deadline.of(GENEROUS_S)


def waiting(locks: KeyedLocks, name: str) -> int:
    with locks._mutex:
        return len(locks._locks[name].waiting) if name in locks._locks else 0


def eventually_waiting(locks: KeyedLocks, name: str, count: int) -> None:
    deadline = far()
    while waiting(locks, name) < count:
        assert deadline.remaining()
        threading.Event().wait(0.005)


def test_who_waits_is_told_who_has_it_what_for_and_since_when() -> None:
    now = [100.0]
    locks = KeyedLocks(clock=lambda: now[0])
    with locks.hold(["gpu-0"], far(), "claim default/a"):
        now[0] = 107.0
        with (
            pytest.raises(LockedError, match="gpu-0: claim default/a has been in work on it for 7 s"),
            locks.hold(["gpu-0", "gpu-1"], Deadline.of(0.05), "claim default/b"),
        ):
            pass
        with locks.hold(["gpu-1"], Deadline.of(0)):
            pass
    assert locks._locks == {}


def test_a_burst_is_served_in_the_order_in_which_it_came() -> None:
    locks = KeyedLocks()
    served: list[int] = []

    def take(number: int) -> None:
        with locks.hold(["gpu"], far()):
            served.append(number)

    executor = DaemonExecutor(50, "test")
    with locks.hold(["gpu"], far()):
        done = []
        for number in range(20):
            done.append(executor.submit(take, number))
            eventually_waiting(locks, "gpu", number + 1)
    for one in done:
        one.result(GENEROUS_S)
    assert served == list(range(20)) and locks._locks == {}


def queued(executor: DaemonExecutor, take: Callable[[], None], locks: KeyedLocks, count: int) -> list[Future[None]]:
    """Let `count` threads wait for the GPU's lock, one after the other."""
    waiters = []
    for number in range(count):
        waiters.append(executor.submit(take))
        eventually_waiting(locks, "gpu", number + 1)
    return waiters


def test_few_wait_for_who_is_slow_and_the_first_of_them_stay() -> None:
    now = [0.0]
    locks = KeyedLocks(clock=lambda: now[0])
    executor = DaemonExecutor(50, "test")

    def take() -> None:
        with locks.hold(["gpu"], far()):
            pass

    with locks.hold(["gpu"], far(), "claim a"):
        first = queued(executor, take, locks, MAX_WAITERS)
        now[0] = SLOW_AFTER_S
        for _ in range(5):
            with pytest.raises(LockedError, match="claim a"):
                executor.submit(take).result(GENEROUS_S)
        assert not any(one.done() for one in first)
    for one in first:
        one.result(GENEROUS_S)


HOLDER = """
import sys
from pathlib import Path
from dra_agent.deadline import Deadline
from dra_agent.prepare.locks import KeyedLocks
with KeyedLocks(Path(sys.argv[1]), process="pod-1").hold(["node/gpu/gpu-0"], Deadline.of(60), "claim default/a"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_kept_out_named_and_its_death_ends_it(tmp_path: Path) -> None:
    locks = KeyedLocks(tmp_path / "locks")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=os.getcwd(),  # noqa: PTH109 - as it is
    )
    assert other.stdin is not None and other.stdout is not None
    with other, other.stdin, other.stdout:
        try:
            assert other.stdout.readline() == b"held\n"
            says = rf"another agent has been in work on it \(pid {other.pid}, pod-1, for claim default/a\)"
            for deadline in (Deadline.of(0), Deadline.of(0.05)):
                with pytest.raises(LockedError, match=says), locks.hold(["node/gpu/gpu-0"], deadline):
                    pass
            with locks.hold(["node/gpu/gpu-1"], Deadline.of(0)):
                pass
        finally:
            other.kill()
        with locks.hold(["node/gpu/gpu-0"], far()):
            pass
    assert locks._locks == {} and {path.name for path in (tmp_path / "locks").iterdir()} == {
        "node%2Fgpu%2Fgpu-0.lock",
        "node%2Fgpu%2Fgpu-1.lock",
    }


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    locks = KeyedLocks(tmp_path / "file" / "locks")
    with (
        pytest.raises(RetryableError, match=r"locks/a\.lock: cannot be locked: Not a directory"),
        locks.hold(["a"], far()),
    ):
        pass
    assert locks._locks == {}


def test_locks_are_for_their_owner_and_who_holds_one_need_not_say_it_in_utf8(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with KeyedLocks(tmp_path / "state" / "locks").hold(["a"], far()):
            pass
    finally:
        os.umask(before)
    file = tmp_path / "state" / "locks" / "a.lock"
    assert file.stat().st_mode & 0o7777 == 0o600 and file.parent.stat().st_mode & 0o7777 == 0o700
    file.write_bytes(b"\xff")
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        locks = KeyedLocks(tmp_path / "state" / "locks")
        with pytest.raises(LockedError, match="\ufffd"), locks.hold(["a"], Deadline.of(0)):
            pass
        file.write_bytes(b"")
        with pytest.raises(LockedError, match=r"\(unknown process\)"), locks.hold(["a"], Deadline.of(0)):
            pass


def test_a_set_up_keeps_other_agents_on_its_state_directory_out(tmp_path: Path) -> None:
    one, other = setup_locks(tmp_path, "mps"), setup_locks(tmp_path, "mps")
    with one.hold(["gpu"], far()):
        with pytest.raises(LockedError), other.hold(["gpu"], Deadline.of(0)):
            pass
        with setup_locks(tmp_path, "vfio").hold(["gpu"], Deadline.of(0)):
            pass
    assert (tmp_path / "locks" / "mps" / "gpu.lock").exists()
    with setup_locks(None, "mps").hold(["gpu"], far()), setup_locks(None, "mps").hold(["gpu"], Deadline.of(0)):
        pass


def test_a_set_up_lets_more_wait_than_a_device_does() -> None:
    executor = DaemonExecutor(MAX_SETUP_WAITERS, "test")
    locks = setup_locks(None, "mps")
    now = [0.0]
    locks._clock = lambda: now[0]

    def take() -> None:
        with locks.hold(["gpu"], far()):
            pass

    with locks.hold(["gpu"], far(), "claim a"):
        waiters = queued(executor, take, locks, MAX_SETUP_WAITERS)
        now[0] = SLOW_AFTER_S
        with pytest.raises(LockedError, match="claim a"), locks.hold(["gpu"], far()):
            pass
        assert not any(one.done() for one in waiters)
    for one in waiters:
        one.result(GENEROUS_S)


def test_no_file_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    locks, others = KeyedLocks(tmp_path), KeyedLocks(tmp_path)
    for _ in range(20):
        with locks.hold(["a", "b"], far()), pytest.raises(LockedError), others.hold(["b"], Deadline.of(0)):
            pass
    for number in range(2 * MAX_CACHED_FILES):
        with locks.hold([f"device-{number}"], Deadline.of(0)):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + MAX_CACHED_FILES  # noqa: PTH208
    for held in (locks, others):
        held.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_a_lock_whose_file_was_removed_is_that_of_the_file_that_others_lock(tmp_path: Path) -> None:
    ours, theirs = KeyedLocks(tmp_path), KeyedLocks(tmp_path)
    with ours.hold(["a"], far()):
        pass
    (tmp_path / "a.lock").unlink()
    with theirs.hold(["a"], far()), pytest.raises(LockedError), ours.hold(["a"], Deadline.of(0)):
        pass
    with ours.hold(["a"], Deadline.of(0)):
        pass
