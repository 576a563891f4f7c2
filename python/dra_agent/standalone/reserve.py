"""Space that the store keeps for the release of claims, for when the disk is full."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

RESERVED_BYTES = 1 << 20
"""For what SQLite writes before it can use the pages of its files again, and for claims that grow."""
MODE = 0o600


class Reserve:
    """A file with allocated space, emptied when the disk is full. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_filled = False

    def fill(self) -> str | None:
        """Allocate the space, if it is not; return why that is not possible."""
        if self._is_filled:
            return None
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
            try:
                os.posix_fallocate(handle, 0, RESERVED_BYTES)
            finally:
                os.close(handle)
        except OSError as error:
            return error.strerror or str(error)
        self._is_filled = True
        return None

    def empty(self) -> None:
        """Free the space. A failure shows in the write that follows."""
        self._is_filled = False
        try:
            os.truncate(self._path, 0)
        except OSError:
            return


def is_disk_full(error: sqlite3.Error) -> bool:
    """Whether SQLite failed for lack of space; its shared memory is a file too."""
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
