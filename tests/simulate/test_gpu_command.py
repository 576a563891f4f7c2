"""`make test-gpu` as a whole, on a simulated host with MIG instances: as root would run it, and without permissions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_agent.recording import load_manifest
from eventually import DEADLINE_S

ROOT = Path(__file__).parents[2]
PLACEMENTS = "nvmlDeviceGetGpuInstancePossiblePlacements"
NO_PERMISSION = 4
SURVEYS = ("NVML as root", "NVML as user", "NVML as without CAP_SYS_ADMIN")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("host", "lists_placements"), [("mixed", True), ("mixed-unprivileged", False)])
def test_the_command_writes_a_report_and_a_recording(host: str, lists_placements: bool, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"DRA_AGENT_TEST_GPU": host, "DRA_AGENT_TEST_GPU_TARGET": str(tmp_path / "gpu")}
    done = subprocess.run(
        ["make", "-o", "build", "test-gpu", f"ARGS=--basetemp={tmp_path / 'run'}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu/report.json").read_text())
    names = [device["device"] for device in report["Devices"]]
    assert [name for name in names if "-mig-" in name] == names and len(names) == 3
    assert all("-gi" not in name for name in names) == lists_placements
    surveys = [report[name] for name in SURVEYS if name in report]
    assert len(surveys) == 2
    codes = [{one["code"] for one in survey if one["call"].startswith(PLACEMENTS)} for survey in surveys]
    assert codes == [{0 if lists_placements else NO_PERMISSION}, {NO_PERMISSION}]
    assert bool(report["Return codes that differ by privilege"]) == lists_placements
    assert report["Calls that the fake library answers differently"] == []
    assert "## Slowest calls" in (tmp_path / "gpu/report.md").read_text()
    assert not load_manifest(tmp_path / "gpu/recording").identity
