"""Benchmarks are scripts, so their folder comes before that of the tests' packages that they import."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_benchmark_hides_a_package_that_it_imports() -> None:
    users = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests" / "cluster" / "kube").rglob("*.py")]
    imported = {
        package for user in users for package in re.findall(r"^\s*from ([a-z_]+)\.", user.read_text(), re.MULTILINE)
    }
    assert "cluster" in imported
    assert not imported & {script.stem for script in (ROOT / "benchmarks").glob("*.py")}
