"""What runs for one call of the kubelet, and for one notice: counted in tests/agent/test_walks.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/agent/test_walks.py::test_a_call_of_the_kubelet_a_uevent_and_a_notice"
WALKS = ("prepare", "notice")
RUNS = 3
"""The agent polls every second. What it does by chance during a walk is not in all runs of the test, which repeats the
prepared claim."""
DEADLINE_S = 300


class NotMeasuredError(Exception):
    """A measure has no number, and this is why."""


@dataclass(frozen=True)
class Walk:
    """What ran in all runs of a walk."""

    files: frozenset[str]
    depth: int
    """The number of frames from the first one of the package in a thread to the deepest one."""


def measure() -> Mapping[str, Walk]:
    """Run the walks and return them by name.

    Raises:
        NotMeasuredError: the test fails, or it keeps no calls.
    """
    runs = [_run() for _ in range(RUNS)]
    return {walk: common([lines for run in runs for lines in run[walk]]) for walk in WALKS}


def _run() -> Mapping[str, list[list[str]]]:
    """Return the lines of the call recorder for each repetition of each walk."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", TEST],
            cwd=ROOT,
            env={**os.environ, "DRA_AGENT_TEST_WALKS": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        kept = {walk: [path.read_text().splitlines() for path in Path(folder).glob(f"{walk}-*")] for walk in WALKS}
        if result.returncode or not all(kept.values()):
            raise NotMeasuredError(f"{TEST} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return kept


def common(runs: Sequence[Sequence[str]]) -> Walk:
    """Return the files that are in all runs, and the smallest depth of them; lines are `file:function depth`."""
    files = [frozenset(line.partition(":")[0] for line in run) for run in runs]
    depths = [max((int(line.rpartition(" ")[2]) for line in run), default=0) for run in runs]
    return Walk(frozenset.intersection(*files), min(depths))
