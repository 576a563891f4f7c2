"""One listening socket in the file system: it appears at once, with its rights, and only its owner takes it away."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from dra_agent.errors import RetryableError

_MODE = 0o600
_HIDDEN = ".~"
_LEFTOVER = 60.0
"""Seconds after which a socket without a listener is nobody's who is just starting."""
_DIRECTORY_MODE = 0o750
"""As the kubelet makes its own."""


class SocketFile:
    """A socket that is bound under a hidden name and then moved to its place.

    So nobody sees it before it listens and has its mode, a stale file is replaced in one step, and gRPC, which unlinks
    what it has bound, finds nothing to unlink. The kubelet's watcher ignores names that begin with a dot.
    """

    def __init__(self, path: Path, replaces: SocketFile | None = None) -> None:
        """Make the directory; RetryableError where that fails or somebody but the one it replaces listens there."""
        self.path = path
        # Never longer than the shortest name of a socket ("dra.sock").
        self._hidden = path.with_name(f"{_HIDDEN}{os.urandom(3).hex()}")
        self._id: tuple[int, int] | None = None
        try:
            path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            # Of agents that were killed between binding and publishing.
            remove_abandoned(path.parent.glob(f"{_HIDDEN}??????"))
            if not (replaces and replaces.is_present) and _somebody_listens(path):
                raise RetryableError(
                    "another process listens on this socket",
                    where=str(path),
                    hint="stop the other driver, or give one of them another --driver-name or its own --pod-uid",
                )
        except OSError as error:
            raise _refused(path, error) from error

    @property
    def address(self) -> str:
        """Where gRPC is to bind."""
        return f"unix:{quote(str(self._hidden))}"

    def publish(self) -> None:
        """Move the bound socket to its place; RetryableError where that fails."""
        try:
            self._hidden.chmod(_MODE)
            self._id = _id(self._hidden)
            self._hidden.rename(self.path)
        except OSError as error:
            raise _refused(self.path, error) from error

    @property
    def is_present(self) -> bool:
        """Tell whether the published file is still there, and no other in its place."""
        try:
            return self._id is not None and _id(self.path) == self._id
        except OSError:
            return False

    def remove(self) -> None:
        """Take the file away; another's in its place stays."""
        with contextlib.suppress(OSError):
            self._hidden.unlink()
        if self.is_present:
            with contextlib.suppress(OSError):
                self.path.unlink()


def _id(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove_abandoned(paths: Iterable[Path]) -> list[Path]:
    """Remove sockets that nobody listens on any more, and give them; young ones may be of somebody who just starts."""
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _LEFTOVER and not _somebody_listens(path):
                path.unlink()
                removed.append(path)
    return removed


def _somebody_listens(path: Path) -> bool:
    """Tell whether a socket is in use; anything else that is in the way is refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # EAGAIN: there is a listener, and its backlog is full.
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)


def _refused(path: Path, error: OSError) -> RetryableError:
    return RetryableError(
        f"the plugin's socket cannot be made: {error.strerror}",
        where=str(error.filename or path),
        hint="check --kubelet-dir, and that the agent may write there",
    )
