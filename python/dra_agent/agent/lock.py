"""The lock on a state directory: two agents in one would give out the same devices, unless both take turns.

It is flock(2): it ends with the process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.errors import PermanentError, RetryableError

log = logging.getLogger(__name__)

_NAME = "agent.lock"


def remove_leftovers(state_dir: Path) -> None:
    """Remove temporary files that agents which were killed left in a state directory and its folders."""
    with suppress(OSError):
        folders = [path for path in state_dir.iterdir() if path.is_dir() and not path.is_symlink()]
        for folder in (state_dir, *folders):
            if removed := atomic_file.remove_leftovers(folder):
                log.info(
                    "temporary files of an agent that was killed are removed",
                    extra={"folder": str(folder), "files": len(removed)},
                )


class StateLock:
    """Holds the lock from creation to `close`."""

    def __init__(self, state_dir: Path, *, shared: bool = False) -> None:
        """Make the directory if it is not there, and take it: alone, or with other agents that also share it.

        PermanentError names the agent that has it; RetryableError says why the directory cannot be used.
        """
        path = state_dir / _NAME
        try:
            _make_directory(state_dir)
            self._handle = _open(path)
        except OSError as error:
            raise RetryableError(
                f"the state directory cannot be used: {error.strerror}",
                where=str(state_dir),
                hint="make it a directory that the agent can write, or choose another with --state-dir",
            ) from error
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            if not isinstance(error, BlockingIOError):
                raise RetryableError(f"cannot be locked: {error.strerror}", where=str(path)) from error
            raise PermanentError(
                f"another agent{f' (pid {holder})' if holder.isdigit() else ''} runs on this state directory",
                where=str(state_dir),
                hint="stop it: of the agents of one host, one at a time serves a driver"
                + ("; only agents that all have --pod-uid share a state directory" if shared else ""),
            ) from None
        try:
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{os.getpid()}\n".encode())
        except OSError:
            pass  # a full or read-only disk: the lock holds all the same, a second agent just cannot name this one

    def close(self) -> None:
        """Let the next agent have it."""
        os.close(self._handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    # Claims that are prepared can be read, and answered. flock(2) needs no write permission.
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None


def _make_directory(path: Path) -> None:
    """Create it with its parents; a new name is durable once the directory that it is in is synced."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        atomic_file.sync_directory(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
