"""Where tests put their files: in memory, where the machine lets them.

A simulated host is thousands of small files, made and removed with each agent that a test starts. On a disk with a
journal that takes longer than all the rest of the start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
LEAST_BYTES = 4 << 30
"""Several times what tests that run at the same time have; a container runtime gives 64 MiB by default."""


def keep_in_memory() -> None:
    """Choose the folder of temporary files for this process and those that it starts, unless TMPDIR names one."""
    if "TMPDIR" not in os.environ and _is_suitable(IN_MEMORY):
        os.environ["TMPDIR"] = os.fspath(IN_MEMORY)
        tempfile.tempdir = None


def _is_suitable(folder: Path) -> bool:
    """Whether it has room, and programs and device nodes work there."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    refused = os.ST_NOEXEC | os.ST_NODEV | os.ST_RDONLY
    return (
        not status.f_flag & refused and status.f_bavail * status.f_frsize >= LEAST_BYTES and os.access(folder, os.W_OK)
    )
