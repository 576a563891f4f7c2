"""Keyed locks: timeouts that name the holder, a limit on waiting threads, and exclusion of other processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
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
from eventually import eventually

TIMEOUT_S = 60.0


def long_deadline() -> Deadline:
    return Deadline.of(TIMEOUT_S)


def eventually_waiting(locks: KeyedLocks, name: str, count: int) -> None:
    eventually(lambda: locks.waiters(name) >= count)


def test_a_timeout_names_the_holder_its_claim_and_the_duration() -> None:
    now = [100.0]
    locks = KeyedLocks(clock=lambda: now[0])
    with locks.hold(["gpu-0"], long_deadline(), "claim default/a"):
        now[0] = 107.0
        with (
            pytest.raises(LockedError, match="gpu-0: claim default/a has been in work on it for 7 s"),
            locks.hold(["gpu-0", "gpu-1"], Deadline.of(0.05), "claim default/b"),
        ):
            pass
        with locks.hold(["gpu-1"], Deadline.of(0)):
            pass
    assert locks.held == []


def test_waiting_threads_are_served_in_order() -> None:
    locks = KeyedLocks()
    served: list[int] = []

    def take(number: int) -> None:
        with locks.hold(["gpu"], long_deadline()):
            served.append(number)

    executor = DaemonExecutor(50, "test")
    with locks.hold(["gpu"], long_deadline()):
        futures = []
        for number in range(20):
            futures.append(executor.submit(take, number))
            eventually_waiting(locks, "gpu", number + 1)
    for future in futures:
        future.result(TIMEOUT_S)
    assert served == list(range(20)) and locks.held == []


def queue_waiters(
    executor: DaemonExecutor, take: Callable[[], None], locks: KeyedLocks, count: int
) -> list[Future[None]]:
    """Queue `count` threads for the lock of the GPU, one after another."""
    waiters = []
    for number in range(count):
        waiters.append(executor.submit(take))
        eventually_waiting(locks, "gpu", number + 1)
    return waiters


def test_a_slow_holder_has_a_limited_number_of_waiters() -> None:
    now = [0.0]
    locks = KeyedLocks(clock=lambda: now[0])
    executor = DaemonExecutor(50, "test")

    def take() -> None:
        with locks.hold(["gpu"], long_deadline()):
            pass

    with locks.hold(["gpu"], long_deadline(), "claim a"):
        first = queue_waiters(executor, take, locks, MAX_WAITERS)
        now[0] = SLOW_AFTER_S
        for _ in range(5):
            with pytest.raises(LockedError, match="claim a"):
                executor.submit(take).result(TIMEOUT_S)
        assert not any(waiter.done() for waiter in first)
    for waiter in first:
        waiter.result(TIMEOUT_S)


HOLDER = """
import sys
from pathlib import Path
from dra_agent.deadline import Deadline
from dra_agent.prepare.locks import KeyedLocks
with KeyedLocks(Path(sys.argv[1]), process="pod-1").hold(["node/gpu/gpu-0"], Deadline.of(60), "claim default/a"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_excluded_until_it_ends(tmp_path: Path) -> None:
    locks = KeyedLocks(tmp_path / "locks")
    second = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "locks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=os.getcwd(),  # noqa: PTH109 - as it is
    )
    assert second.stdin is not None and second.stdout is not None
    with second, second.stdin, second.stdout:
        try:
            assert second.stdout.readline() == b"held\n"
            message = rf"another agent has been in work on it \(pid {second.pid}, pod-1, for claim default/a\)"
            for deadline in (Deadline.of(0), Deadline.of(0.05)):
                with pytest.raises(LockedError, match=message), locks.hold(["node/gpu/gpu-0"], deadline):
                    pass
            with locks.hold(["node/gpu/gpu-1"], Deadline.of(0)):
                pass
        finally:
            second.kill()
        with locks.hold(["node/gpu/gpu-0"], long_deadline()):
            pass
    assert locks.held == [] and {path.name for path in (tmp_path / "locks").iterdir()} == {
        "node%2Fgpu%2Fgpu-0.lock",
        "node%2Fgpu%2Fgpu-1.lock",
    }


def test_an_unusable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    locks = KeyedLocks(tmp_path / "file" / "locks")
    with (
        pytest.raises(RetryableError, match=r"locks/a\.lock: cannot be locked: Not a directory"),
        locks.hold(["a"], long_deadline()),
    ):
        pass
    assert locks.held == []


def test_lock_files_are_private_and_need_not_be_utf8(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with KeyedLocks(tmp_path / "state" / "locks").hold(["a"], long_deadline()):
            pass
    finally:
        os.umask(before)
    file = tmp_path / "state" / "locks" / "a.lock"
    assert file.stat().st_mode & 0o7777 == 0o600 and file.parent.stat().st_mode & 0o7777 == 0o700
    file.write_bytes(b"\xff")
    with file.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        locks = KeyedLocks(tmp_path / "state" / "locks")
        with pytest.raises(LockedError, match="\ufffd"), locks.hold(["a"], Deadline.of(0)):
            pass
        file.write_bytes(b"")
        with pytest.raises(LockedError, match=r"\(unknown process\)"), locks.hold(["a"], Deadline.of(0)):
            pass


def test_a_device_setup_excludes_other_agents(tmp_path: Path) -> None:
    first, second = setup_locks(tmp_path, "mps"), setup_locks(tmp_path, "mps")
    with first.hold(["gpu"], long_deadline()):
        with pytest.raises(LockedError), second.hold(["gpu"], Deadline.of(0)):
            pass
        with setup_locks(tmp_path, "vfio").hold(["gpu"], Deadline.of(0)):
            pass
    assert (tmp_path / "locks" / "mps" / "gpu.lock").exists()
    with (
        setup_locks(None, "mps").hold(["gpu"], long_deadline()),
        setup_locks(None, "mps").hold(["gpu"], Deadline.of(0)),
    ):
        pass


def test_a_device_setup_allows_more_waiters_than_a_device() -> None:
    executor = DaemonExecutor(MAX_SETUP_WAITERS, "test")
    now = [0.0]
    locks = setup_locks(None, "mps", clock=lambda: now[0])

    def take() -> None:
        with locks.hold(["gpu"], long_deadline()):
            pass

    with locks.hold(["gpu"], long_deadline(), "claim a"):
        waiters = queue_waiters(executor, take, locks, MAX_SETUP_WAITERS)
        now[0] = SLOW_AFTER_S
        with pytest.raises(LockedError, match="claim a"), locks.hold(["gpu"], long_deadline()):
            pass
        assert not any(waiter.done() for waiter in waiters)
    for waiter in waiters:
        waiter.result(TIMEOUT_S)


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    locks, others = KeyedLocks(tmp_path), KeyedLocks(tmp_path)
    for _ in range(20):
        with locks.hold(["a", "b"], long_deadline()), pytest.raises(LockedError), others.hold(["b"], Deadline.of(0)):
            pass
    for number in range(2 * MAX_CACHED_FILES):
        with locks.hold([f"device-{number}"], Deadline.of(0)):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + MAX_CACHED_FILES  # noqa: PTH208
    for keyed_locks in (locks, others):
        keyed_locks.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


def test_a_removed_lock_file_does_not_split_the_lock(tmp_path: Path) -> None:
    first, second = KeyedLocks(tmp_path), KeyedLocks(tmp_path)
    with first.hold(["a"], long_deadline()):
        pass
    (tmp_path / "a.lock").unlink()
    with second.hold(["a"], long_deadline()), pytest.raises(LockedError), first.hold(["a"], Deadline.of(0)):
        pass
    with first.hold(["a"], Deadline.of(0)):
        pass
