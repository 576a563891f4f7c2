"""The directory of temporary files: in memory if the machine allows it.

A simulated host has thousands of small files, created and removed with each agent that a test starts. On a disk with a
journal that takes longer than the rest of the start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
LEAST_BYTES = 4 << 30
"""Several times what concurrent tests use; a container runtime gives 64 MiB by default."""


def keep_in_memory() -> None:
    """Set the directory of temporary files for this process and its children, unless TMPDIR is set."""
    if "TMPDIR" not in os.environ and _is_suitable(IN_MEMORY):
        os.environ["TMPDIR"] = os.fspath(IN_MEMORY)
        tempfile.tempdir = None


def _is_suitable(folder: Path) -> bool:
    """Return whether it has enough space, and allows executables and device nodes."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    unsuitable_flags = os.ST_NOEXEC | os.ST_NODEV | os.ST_RDONLY
    return (
        not status.f_flag & unsuitable_flags
        and status.f_bavail * status.f_frsize >= LEAST_BYTES
        and os.access(folder, os.W_OK)
    )
