"""Runs of pytest as root remove what earlier runs left, also where tests gave it to another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
KEPT_RUNS = 3
OTHER_USER = 65534
TIMEOUT_S = 120


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change an owner")
def test_directories_of_other_users_are_removed(tmp_path: Path) -> None:
    runs = tmp_path / "pytest-of-root"
    runs.mkdir(mode=0o700)
    for number in range(1 + KEPT_RUNS):
        (runs / f"pytest-{number}").mkdir(mode=0o700)
    owned = runs / "pytest-0/owned"
    owned.mkdir(mode=0o755)
    (owned / "file").touch()
    os.chown(owned, OTHER_USER, -1)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "doctor/test_shared_directories.py"],
        cwd=TESTS,
        env=os.environ | {"PYTEST_DEBUG_TEMPROOT": str(tmp_path), "USER": "root", "LOGNAME": "root"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    left = sorted(path.name for path in runs.iterdir() if not path.is_symlink())
    assert left == [f"pytest-{number}" for number in range(1, KEPT_RUNS + 1)]
