"""A sample of the campaign with shortages: the whole campaign is `make faults-resources`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import DEADLINE_S
from faults.resources import STEPS, moments
from faults.shortage import RESOURCES

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="the interposer is compiled by the system's C compiler"),
    pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit of util-linux changes the limits"),
]


def run(moment: str, shortage: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one case in a process of its own, which may become another user."""
    command = [sys.executable, "-m", "faults.resources", "--point", str(moments().index(moment)), "--fault", shortage]
    environment = {**os.environ, "PYTHONPATH": "tests"}
    return subprocess.run(
        [*command, "--jobs", "1", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=20 * DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("shortage", RESOURCES)
def test_a_shortage_at_the_first_notice_is_survived(shortage: str) -> None:
    result = run("notice, at its begin", shortage)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed, 0 failed" in result.stdout


def test_a_shortage_that_does_not_end_is_a_failure() -> None:
    result = run("read the status, at its begin", "descriptors", "--seconds", "600", "--deadline", "10")
    assert result.returncode == 1 and "not done after 10 s" in result.stdout, result.stdout + result.stderr


def test_a_life_has_fifty_moments() -> None:
    assert len(moments()) == 2 * len(STEPS) == 50
