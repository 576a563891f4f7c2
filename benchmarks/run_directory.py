"""The directory that a benchmark writes to, on the file system that it measures."""

from __future__ import annotations

import tempfile
from pathlib import Path

PREFIX = ".bench-"
"""Git ignores such directories: a killed benchmark leaves its directory where it was started."""


def run_directory(file_system: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a new directory below `file_system`. It is removed at the end of the `with` block."""
    return tempfile.TemporaryDirectory(dir=file_system.resolve(), prefix=PREFIX)
