"""Files that a user names: read with a bound, and without waiting for anything but a disk or a pipe of the caller.

A path on a command line, in a variable or in a kubeconfig can lead to a FIFO without a writer, to a device or to a file
without an end. open(2) and read(2) of these never return. Only regular files are read, through symbolic links, as
ConfigMap and Secret volumes consist of them.

Pipes that the command inherited stay readable: standard input, /dev/stdin, and the /dev/fd/N of `<(command)`.
Everything here raises OSError with the reason in `strerror`; the caller adds context.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import sys
from pathlib import Path

_INHERITED = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_CHUNK_BYTES = 1 << 20
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "Is a directory, not a regular file"),
    (stat.S_ISFIFO, errno.EINVAL, "Is a FIFO, not a regular file"),
    (stat.S_ISSOCK, errno.EINVAL, "Is a socket, not a regular file"),
    (stat.S_ISCHR, errno.EINVAL, "Is a device, not a regular file"),
    (stat.S_ISBLK, errno.EINVAL, "Is a device, not a regular file"),
)


def read(path: Path | str, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`, or a pipe, socket or terminal that this process inherited.

    Raises OSError: as open(2) does, EISDIR or EINVAL for other than a regular file, EFBIG for a larger one.
    """
    inherited = _inherited(str(path))
    if inherited is not None:
        mode = os.fstat(inherited).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(inherited):
            return _read_all(inherited, max_bytes, str(path))
    # A FIFO opens at once with O_NONBLOCK, and a terminal does not become the process' own with O_NOCTTY.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        for is_kind, code, reason in _KINDS:
            if is_kind(status.st_mode):
                raise OSError(code, reason, str(path))
        if status.st_size > max_bytes:
            raise _too_large(max_bytes, str(path))
        return _read_all(descriptor, max_bytes, str(path), expected=status.st_size)
    finally:
        os.close(descriptor)


def read_standard_input(max_bytes: int) -> bytes:
    """Read standard input to its end, at most `max_bytes`. Raises OSError: EBADF where it is closed, EFBIG."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # text in memory, in place of the real one
        data = sys.stdin.read(max_bytes + 1).encode()
        if len(data) > max_bytes:
            raise _too_large(max_bytes, "standard input") from None
        return data
    return _read_all(descriptor, max_bytes, "standard input")


def _inherited(path: str) -> int | None:
    if path == "/dev/stdin":
        return 0
    match = _INHERITED.fullmatch(path)
    return int(match[1]) if match else None


def _read_all(descriptor: int, max_bytes: int, name: str, *, expected: int = 0) -> bytes:
    """Read to the end; `expected` bytes are read at once, and so not copied again."""
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            part = os.read(descriptor, min(max(_CHUNK_BYTES, expected), max_bytes + 1 - size))
        except BlockingIOError:  # a pipe that its other users made non-blocking
            select.select([descriptor], [], [])
            continue
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes, name)


def _too_large(max_bytes: int, name: str) -> OSError:
    bound = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"Larger than {bound}", name)
