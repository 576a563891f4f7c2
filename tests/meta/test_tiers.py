"""A run of the first tier leaves out marked tests, and its last lines have their number for each reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tiers

TESTS = Path(__file__).resolve().parents[1]
SUITE = """
import pytest, tiers
def test_fast(): pass
@tiers.GO
def test_go(): pass
@tiers.CASES
@pytest.mark.parametrize("n", range(3))
def test_case(n): pass
"""
CONFTEST = """
import pathlib, tiers
def pytest_configure(config):
    config.addinivalue_line("markers", "thorough(what)")
    tiers.TESTS = pathlib.Path(__file__).parent
    tiers.PLACES = {"test_a.py": tiers.GO, "folder": tiers.HOUSE}
    config.pluginmanager.register(tiers.Tiers(config))
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_left_out_is_counted_by_reason(tmp_path: Path, workers: str) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("test_a.py", "folder/test_b.py", "folder/test_c.py"):
        (tmp_path / name).write_text("raise AssertionError('imported')\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", workers]
    command = [sys.executable, "-m", "pytest", *options, "-o", f"pythonpath={TESTS}", "-m", "not thorough"]
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    lines = [line.strip() for line in result.stdout.splitlines()]
    first = lines.index("left to `make test-all`:") + 1
    assert lines[first : first + 4] == [
        "2 files of tests that check this repository, its pages and its packages, not the agent",
        "1 files of tests that compare with Kubernetes' own Go code",
        "3 single tests that run more cases of what a faster test checks",
        "1 single tests that compare with Kubernetes' own Go code",
    ]
    assert "1 passed" in lines[-1]


@pytest.mark.parametrize("place", tiers.PLACES)
def test_every_place_of_the_table_exists(place: str) -> None:
    assert (TESTS / place).exists()
