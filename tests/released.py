"""The artifacts of a release directory, as `make release` writes it: tests install them in place of a build."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PACKAGES = "DRA_AGENT_TEST_PACKAGES"
"""The variable with the release directory for tests/packages."""
IMAGES = "DRA_AGENT_TEST_IMAGES"
"""The variable with the release directory for tests/image."""
SUMS = "SHA256SUMS"


def artifact(variable: str, pattern: str) -> Path | None:
    """Return the only file of the directory with this name; None if the variable names no directory.

    AssertionError if no file or several files match, or if the checksum of the file differs from the one in SHA256SUMS.
    """
    folder = os.environ.get(variable)
    if not folder:
        return None
    found = sorted(Path(folder).resolve().glob(pattern))
    assert len(found) == 1, f"{variable}={folder}: one file {pattern} is needed, not {[path.name for path in found]}"
    verify(found[0])
    return found[0]


def verify(path: Path) -> None:
    """Compare a file with the list of checksums next to it; a directory without one is not a release."""
    sums = path.with_name(SUMS)
    if not sums.exists():
        return
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in sums.read_text().splitlines())}
    with path.open("rb") as file:
        assert listed.get(path.name) == hashlib.file_digest(file, "sha256").hexdigest(), f"{path}: not that of {SUMS}"
