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
import tiers
def pytest_configure(config):
    config.addinivalue_line("markers", "thorough(what)")
    config.pluginmanager.register(tiers.Tiers(config))
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_left_out_tests_are_counted_by_reason(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", workers]
    command = [sys.executable, "-m", "pytest", *options, "-o", f"pythonpath={TESTS}", "-m", "not thorough"]
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "4 tests are left to `make test-all`:" in lines
    assert "3 run more cases of what a faster test checks" in lines
    assert "1 compare with Kubernetes' own Go code" in lines
    assert "1 passed" in lines[-1]


@pytest.mark.parametrize("place", tiers.PLACES)
def test_every_place_of_the_table_exists(place: str) -> None:
    assert (TESTS / place).exists()
