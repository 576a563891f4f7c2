"""inotify(7) through libc: which directories have changed, without the events themselves."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_READ_BYTES = 1 << 16
# include/uapi/linux/inotify.h
MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
_ONLYDIR = 0x01000000


class Inotify:
    """An inotify descriptor, which is readable after a change."""

    def __init__(self) -> None:
        """Open it; raises OSError if the limit of instances is reached."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _last_error()

    def add(self, folder: Path | str, events: int) -> None:
        """Follow the entries of a directory, once more if it is followed already. Raises OSError."""
        if self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), events | _ONLYDIR) < 0:
            raise _last_error()

    def drain(self) -> None:
        """Read the events: their kind does not matter, as what they are about is read again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, _READ_BYTES):
                pass

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
