"""Small files that are there whole or not at all: readers and crashes find the old contents or the new ones.

Everything here raises OSError; the caller adds context.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{16}|[0-9]+-[0-9]+)\.tmp", re.DOTALL)
"""Version 0.1 put the process id and a number where there are random digits now."""


def write(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    durable: bool = False,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Put a file in place of the one that is there, if any; its folder must exist.

    `mode` is independent of the umask. `durable`: it survives a power cut once this returns. Without, a power cut may
    take it: for what is found or written again. `is_wanted` is called last, when all data is written: if it returns
    False, the file stays as it is.

    The temporary file is in the same directory, hidden, under a name of this call alone, and ends with neither
    `.json` nor `.yaml`: container runtimes read every such file of a CDI directory, dot files too. It is locked while
    it is written, so that `remove_leftovers` of another process does not take it for a leftover.
    """
    # Random: in a container every agent has the same process id, and a leftover of the last one may still be there.
    folder, _, name = os.fspath(path).rpartition("/")
    temporary = f"{folder or '.'}/.{name}.{os.urandom(8).hex()}.tmp"
    try:
        handle, created_mode = _open_locked(temporary, mode)
        try:
            if created_mode != mode:  # by the umask; a change writes to the disk
                os.fchmod(handle, mode)
            write_all(handle, data)
            if durable:
                os.fsync(handle)
            if not is_wanted():
                os.unlink(temporary)  # noqa: PTH108
                return
            os.rename(temporary, path)  # noqa: PTH104 - no Path for each claim
        finally:
            os.close(handle)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    if durable:
        sync_directory(path.parent)


def _open_locked(temporary: str, mode: int) -> tuple[int, int]:
    """Return a new file, and its mode."""
    while True:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        status = os.fstat(handle)
        if status.st_nlink:
            return handle, stat.S_IMODE(status.st_mode)
        os.close(handle)  # removed as a leftover between the two calls


def remove_leftovers(folder: Path, prefix: str = ".") -> list[Path]:
    """Remove temporary files whose writer has ended, and return their paths; a file with an error is kept.

    `prefix`: prefix of their names. Links are not followed. Files of a running writer are locked, and are kept.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names only: no Path per file of a crowded directory
    except OSError:
        return []
    found = [folder / name for name in names if name.startswith(prefix) and _TEMPORARY.fullmatch(name)]
    return [path for path in found if _remove_unlocked(path)]


def _remove_unlocked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def read(path: Path, max_bytes: int) -> bytes:
    """Read at most `max_bytes` bytes of a plain file; a link, a pipe or a larger file is an OSError like any other."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
        parts = []
        while part := os.read(handle, max_bytes):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(handle)


def remove(path: Path, *, durable: bool = False) -> bool:
    """Remove a file; False where there was none."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    if durable:
        sync_directory(path.parent)
    return True


def quarantine(path: Path) -> Path:
    """Rename a damaged file to the first free `NAME.corrupt-N`, for inspection; returns its new path."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside


def write_all(handle: int, data: bytes) -> None:
    """Write every byte, also if the kernel accepts only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
