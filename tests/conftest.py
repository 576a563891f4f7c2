"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "fixtures"


@pytest.fixture
def recorded_host(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Unpack a recorded machine, named by indirect parametrisation; skip where the recordings are not at hand."""
    archive = RECORDED / f"{request.param}.tar.xz"
    if not archive.exists():
        pytest.skip(f"recorded machine {request.param} is not at hand ({archive})")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="fully_trusted")
    for path in tmp_path.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o700 if path.is_dir() else 0o400))
    return tmp_path
