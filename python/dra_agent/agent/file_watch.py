"""Notices changes of one file through inotify(7) on its directory, which also reports a replaced file.

An editor renames a new file over the old one; the kubelet renames a new `..data` link over the old one, below which
every key of a ConfigMap is (pkg/volume/util/atomic_writer.go). Both change the directory, and not the file itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.2
"""Seconds without a further event before the change is reported: an editor causes several."""
_READ_BYTES = 1 << 16
# include/uapi/linux/inotify.h
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_EVENTS = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_ONLYDIR = 0x01000000


class FileWatch:
    """Calls back after changes in the directory of a file, from `start` to `stop`, on the running event loop."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        """`changed` is called after a burst of events of the directory, which may be about other files of it."""
        self._path = path.absolute()
        self._changed = changed
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> bool:
        """Start; returns False if the directory cannot be followed, which is logged."""
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return self._failed(ctypes.get_errno())
        added, error = [], 0
        # A link to a file elsewhere: that file is replaced or written in its own directory.
        for folder in dict.fromkeys((self._path.parent, self._path.resolve().parent)):
            added.append(libc.inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS | _ONLYDIR) >= 0)
            error = error or (0 if added[-1] else ctypes.get_errno())
        if not any(added):
            os.close(descriptor)
            return self._failed(error)
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._receive)
        return True

    def stop(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _failed(self, error: int) -> bool:
        # Without a directory there is no file yet: the default one is optional.
        log.log(
            logging.DEBUG if error == errno.ENOENT else logging.WARNING,
            "changes of the configuration file are not followed; SIGHUP reloads it",
            extra={"file": str(self._path), "reason": os.strerror(error)},
        )
        return False

    def _receive(self) -> None:
        assert self._descriptor is not None
        # The kind of the event does not matter: the file is read again.
        with contextlib.suppress(BlockingIOError):
            while os.read(self._descriptor, _READ_BYTES):
                pass
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(DEBOUNCE_S, self._changed)
