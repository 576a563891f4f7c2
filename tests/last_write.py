"""Detection of writes to a file, independent of reads."""

from __future__ import annotations

from pathlib import Path


def last_write(path: Path) -> tuple[int, int, int]:
    """Return the fields that every write changes. A complete `stat_result` also has the access time."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns
