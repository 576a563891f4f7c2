"""The files of the source distribution: what builds need, and no test or corpus."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 5 << 19


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command: list[str | Path] = [sys.executable, ROOT / "deploy/sdist.py", tmp_path_factory.mktemp("sdist")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip())


def folders(archive: Path) -> set[str]:
    """Return the names below the archive's own folder."""
    with tarfile.open(archive) as opened:
        return {PurePosixPath(member.name).parts[1] for member in opened if "/" in member.name}


def test_it_has_all_that_builds_need_and_nothing_for_contributors_only(archive: Path) -> None:
    listed = subprocess.run(["git", "ls-tree", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    expected = {*listed.stdout.split(), "PKG-INFO"} - {"tests", "fuzz", "benchmarks", ".ci", ".github"}
    assert folders(archive) == expected
    assert {"Cargo.lock", "LICENSE", "Makefile", "deploy", "man", "pyproject.toml", "python", "rust"} <= expected


def test_it_stays_small(archive: Path) -> None:
    assert archive.stat().st_size < MAX_BYTES
