"""A small file system of its own, to fill: skips the test where it cannot be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(folder: Path, size: str = "2m") -> Iterator[Path]:
    """Mount 2 MiB of memory below `folder`."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    small = folder / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield small
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def fill(folder: Path) -> Path:
    """Write a file until the file system is full; return the file."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    return filler
