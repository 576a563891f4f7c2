"""flock(2) with a deadline, and the permissions of lock files."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.file_lock import keep_private, lock, try_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch(0o644)
    return path


@pytest.fixture
def handle(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_a_lock_is_awaited_until_the_deadline(path: Path, handle: int) -> None:
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not try_lock(handle) and not try_lock(handle, shared=True)
        assert not lock(handle, Deadline.of(0.02))
        attempted = threading.Event()
        results: list[bool] = []

        def attempt(descriptor: int) -> bool:
            acquired = try_lock(descriptor)
            attempted.set()
            return acquired

        waiter = threading.Thread(target=lambda: results.append(lock(handle, Deadline.of(60), attempt)))
        waiter.start()
        assert attempted.wait(60)
        fcntl.flock(other, fcntl.LOCK_UN)
        waiter.join(60)
        assert results == [True] and not try_lock(other.fileno())


def test_an_expired_deadline_leaves_one_attempt(handle: int) -> None:
    assert lock(handle, Deadline.of(0))


def test_a_shared_lock_can_be_requested(path: Path, handle: int) -> None:
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not lock(handle, Deadline.of(0))
        assert lock(handle, Deadline.of(0), lambda descriptor: try_lock(descriptor, shared=True))


def test_a_closed_descriptor_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock(writing, Deadline.of(60))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user of a process")
def test_other_users_cannot_open_a_private_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "file"
        path.touch()
        path.chmod(0o644)

        def can_open() -> bool:
            command = ["/bin/cat", str(path)]
            return (
                subprocess.run(command, user=65534, group=65534, extra_groups=[], stderr=subprocess.DEVNULL).returncode
                == 0
            )

        assert can_open()
        with path.open("r+") as file:
            keep_private(file.fileno())
        assert not can_open() and path.stat().st_mode & 0o7777 == 0o600
