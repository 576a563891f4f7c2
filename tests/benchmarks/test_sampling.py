"""benchmarks/sampling.py with few claims: both agents are measured, and the one with telemetry has values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from results import load

from eventually import DEADLINE_S

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sampling.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel shows frames of memory only to root")
def test_a_short_round_is_measured(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, SCRIPT, "--quick", "--results", tmp_path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=10 * DEADLINE_S)
    measures = {measure.name: measure for measure in load(tmp_path / "sampling.json").measures}
    # All 8 GPUs and 10 NICs are sampled, also without a claim.
    for kind, devices in (("whole devices", 18), ("MIG devices", 19)):
        sample = measures[f"{kind}: CPU time of a sample of {devices} devices"]
        assert sample.target is not None and sample.target.limit == devices
        assert measures[f"{kind}: additional memory"].target is not None
        for name in ("CPU time per second", "agent and NVML process, pages counted once", "private"):
            assert measures[f"{kind}: {name}"].compared_with == "telemetry off"
            assert measures[f"{kind}: {name}"].value > 0
