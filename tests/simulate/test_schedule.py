"""Files with the load of a simulated GPU: what they mean, and errors with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.errors import UsageError
from dra_simulate.nvml import LoadStep
from dra_simulate.schedule import read_schedule

HEADER = "seconds,gpu_percent,memory_percent,memory_mib,power_watts\n"


def test_each_line_is_a_step(tmp_path: Path) -> None:
    file = tmp_path / "load.csv"
    file.write_text(f"{HEADER}0, 95, 60, 1024, 650.5\n\n2.5,0,0,0.5,70\n")
    assert read_schedule(file) == (
        LoadStep(at_ms=0, utilization=(95, 60), memory_bytes=1 << 30, power_milliwatts=650_500),
        LoadStep(at_ms=2500, memory_bytes=1 << 19, power_milliwatts=70_000),
    )


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        ("", ":1", "is not a schedule of load"),
        ("0,1,2,3,4\n", ":1", "is not a schedule of load"),
        (HEADER, "", "has no load"),
        (f"{HEADER}0,1,2,3\n", ":2", "has 4 values"),
        (f"{HEADER}5,1,2,3,4\n", ":2", "seconds: the first is not 0"),
        (f"{HEADER}0,1,2,3,4\n9,1,2,3,4\n9,1,2,3,4\n", ":4", "seconds: it is not later than the line before"),
        (f"{HEADER}0,101,2,3,4\n", ":2", "gpu_percent: '101' is not a number from 0 to 100"),
        (f"{HEADER}0,1,2,-3,4\n", ":2", "memory_mib: '-3' is not a number from 0 to"),
        (f"{HEADER}0,1,2,3,nan\n", ":2", "power_watts: 'nan' is not a number from 0 to"),
        (f"{HEADER}0,1,2,3,much\n", ":2", "power_watts: 'much' is not a number from 0 to"),
        ("\udc80", "", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, content: str, place: str, message: str) -> None:
    file = tmp_path / "load.csv"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as refused:
        read_schedule(file)
    assert str(refused.value).startswith(f"{file}{place}: {message}")
    assert "the first line is seconds,gpu_percent" in str(refused.value)
