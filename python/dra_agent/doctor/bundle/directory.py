"""Reads the files of one directory for a bundle: regular files only, and nothing outside of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 1000
MAX_FILE_BYTES = 1 << 20

_KINDS = (
    (stat.S_ISLNK, "a symbolic link, which is not followed"),
    (stat.S_ISDIR, "a directory, which is not entered"),
    (stat.S_ISFIFO, "a FIFO, not a regular file"),
    (stat.S_ISSOCK, "a socket, not a regular file"),
    (stat.S_ISCHR, "a device, not a regular file"),
    (stat.S_ISBLK, "a device, not a regular file"),
)


@dataclass(frozen=True, slots=True)
class DirectoryFile:
    """One entry of a directory: its data, or why it is missing."""

    name: str
    data: bytes = b""
    reason: str = ""


def read_directory(folder: Path) -> Iterator[DirectoryFile]:
    """Yield the entries of a directory in the order of their names.

    The directory itself may be reached through links (/var/run), its entries may not. A file that is replaced by a
    link meanwhile is refused too. Raises OSError where the directory cannot be listed.
    """
    handle = os.open(folder.resolve(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        names = sorted(os.listdir(handle))  # noqa: PTH208 - of this descriptor
        for name in names[:MAX_FILES]:
            try:
                yield _read(handle, name)
            except OSError as error:
                yield DirectoryFile(name, reason=f"cannot be read: {error.strerror}")
        if len(names) > MAX_FILES:
            yield DirectoryFile("...", reason=f"{len(names) - MAX_FILES} more entries: at most {MAX_FILES} are read")
    finally:
        os.close(handle)


def _read(folder: int, name: str) -> DirectoryFile:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    for is_kind, reason in _KINDS:
        if is_kind(mode):
            return DirectoryFile(name, reason=reason)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return DirectoryFile(name, reason="not a regular file")
        data = b""
        while len(data) <= MAX_FILE_BYTES and (part := os.read(file, MAX_FILE_BYTES + 1 - len(data))):
            data += part
    finally:
        os.close(file)
    if len(data) > MAX_FILE_BYTES:
        return DirectoryFile(name, reason=f"larger than {MAX_FILE_BYTES >> 10} KiB")
    return DirectoryFile(name, data)
