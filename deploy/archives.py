"""Extracts archives that this project has made, with every Python that it supports."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Literal

HAS_FILTERS = hasattr(tarfile, "data_filter")
"""Debian 12 has Python 3.11.2, and filters exist from 3.11.4 on; later versions warn without one."""


def extract(archive: tarfile.TarFile, target: Path, *, filter_: Literal["data", "tar"] = "data") -> None:
    """Extract everything into a directory; `filter_` is that of `TarFile.extractall`, where it has filters."""
    if HAS_FILTERS:
        archive.extractall(target, filter=filter_)  # noqa: S202 - not from elsewhere
    else:
        archive.extractall(target)  # noqa: S202 - not from elsewhere
