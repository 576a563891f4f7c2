"""Writes the archive of a bundle: complete, readable by its owner only, and never in place of another file."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.errors import PermanentError, RetryableError

TOP = "dra-agent-bundle"
"""The directory in the archive."""


def require_new(path: Path) -> None:
    """Raise PermanentError if there is a file at the path already, or no directory to write it to."""
    if os.path.lexists(path):
        raise _exists(path)
    if not path.absolute().parent.is_dir():
        raise PermanentError("there is no such directory", where=str(path.parent), hint="name a file in another one")


def write_archive(path: Path, data: bytes) -> None:
    """Write an archive with mode 0600.

    Raises PermanentError if a file has appeared there, and RetryableError if it cannot be written.
    """
    path = path.absolute()
    temporary = path.parent / f".{path.name}.{os.urandom(8).hex()}.tmp"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)
            atomic_file.write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        _publish(temporary, path)
        atomic_file.sync_directory(path.parent)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise RetryableError(
            f"the bundle cannot be written: {error.strerror}",
            where=str(path),
            hint="make room, or name a file in another directory",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _publish(temporary: Path, path: Path) -> None:
    """Give the file its name. rename(2) alone would replace a file that has appeared there."""
    try:
        path.hardlink_to(temporary)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without links, such as vfat: the name is taken first.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        temporary.rename(path)


def pack(files: Mapping[str, bytes], created: datetime) -> bytes:
    """Return a tar.gz of the files, which were created at a time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{TOP}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(created.timestamp())
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _exists(path: Path) -> PermanentError:
    return PermanentError("is there already", where=str(path), hint="name a new file, or remove this one first")
