"""Finds programs of the machine: the only lookup, so that no program of the current directory is ever run."""

from __future__ import annotations

import errno
import os
from pathlib import Path

SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Programs of root, which the PATH of other users often lacks."""


def find_program(name: str, *, system: bool = False, also: tuple[str, ...] = ()) -> Path | None:
    """Return the first file of this name in PATH that may be executed; None if there is none.

    For names without a directory. Empty and relative entries lead to the current directory, which can be another
    user's, and are skipped. `system`: then also in SYSTEM_DIRECTORIES, and in those of `also`. shutil has a lookup
    that accepts such entries, and imports libraries for compression, which take 0.4 MiB.
    """
    directories = [*os.get_exec_path(), *(SYSTEM_DIRECTORIES if system else ()), *also]
    for directory in filter(os.path.isabs, directories):
        path = Path(directory, name)
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def executable(command: str) -> str:
    """Return the path of a command that a user configured: a name is searched in PATH, a path is used as it is.

    Raises FileNotFoundError for a name that is not in PATH.
    """
    if "/" in command:
        return command
    found = find_program(command)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory in PATH", command)
    return str(found)
