"""flock(2) with a deadline: it is waited for, given up in time, and nobody without rights to a file can take it."""

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
    opened = os.open(path, os.O_RDWR)
    yield opened
    os.close(opened)


def test_a_lock_that_stays_is_given_up_at_the_deadline_and_one_that_goes_is_had(path: Path, handle: int) -> None:
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not try_lock(handle) and not try_lock(handle, shared=True)
        assert not lock(handle, Deadline.of(0.02))
        tried = threading.Event()
        had: list[bool] = []

        def attempt(one: int) -> bool:
            done = try_lock(one)
            tried.set()
            return done

        waiter = threading.Thread(target=lambda: had.append(lock(handle, Deadline.of(60), attempt)))
        waiter.start()
        assert tried.wait(60)
        fcntl.flock(other, fcntl.LOCK_UN)
        waiter.join(60)
        assert had == [True] and not try_lock(other.fileno())


def test_a_deadline_that_has_passed_leaves_one_try(handle: int) -> None:
    assert lock(handle, Deadline.of(0))


def test_a_shared_lock_is_enough_for_who_says_so(path: Path, handle: int) -> None:
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not lock(handle, Deadline.of(0))
        assert lock(handle, Deadline.of(0), lambda one: try_lock(one, shared=True))


def test_what_cannot_be_locked_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock(writing, Deadline.of(60))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nobody_else_can_open_and_so_lock_a_private_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "file"
        path.touch()
        path.chmod(0o644)

        def opens() -> bool:
            stranger = ["/bin/cat", str(path)]
            return (
                subprocess.run(stranger, user=65534, group=65534, extra_groups=[], stderr=subprocess.DEVNULL).returncode
                == 0
            )

        assert opens()
        with path.open("r+") as file:
            keep_private(file.fileno())
        assert not opens() and path.stat().st_mode & 0o7777 == 0o600
