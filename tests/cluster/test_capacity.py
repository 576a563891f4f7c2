"""`dra-agent capacity` counts what kube-scheduler binds: the short form of `make bench-capacity`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 900


@pytest.mark.timeout(DEADLINE_S + 60)
def test_capacity_is_what_the_scheduler_binds(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/capacity.py"), "--rounds=4", "--nodes=30", f"--dir={tmp_path}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [line for line in done.stdout.splitlines() if line.endswith(": equal")]
    assert len(rounds) == 4
    assert any(int(line.split(" predicted")[0].split()[-1]) > 0 for line in rounds), "no round bound a pod"
