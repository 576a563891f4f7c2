"""Telling whether a file was written since, whoever has read it meanwhile."""

from __future__ import annotations

from pathlib import Path


def last_write(path: Path) -> tuple[int, int, int]:
    """What every write changes. A whole `stat_result` also has the time of the last reading, in seconds."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
