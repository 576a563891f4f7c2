"""Finds programs of the machine in PATH."""

from __future__ import annotations

import os
from pathlib import Path


def find_program(name: str) -> Path | None:
    """Return the first file of this name in PATH that may be executed; None if there is none.

    For names without a directory. An empty entry, which is the current directory for a shell, is skipped. shutil has
    the same, and imports libraries for compression, which take 0.4 MiB.
    """
    for directory in filter(None, os.get_exec_path()):
        path = Path(directory, name)
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
