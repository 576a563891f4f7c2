"""The pages that are generated from the program are current, and man pages have no mistakes that groff reports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "deploy.pages", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"run `make docs-reference`:\n{result.stderr}"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_are_valid() -> None:
    pages = sorted((ROOT / "man").glob("*.1"))
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", *map(str, pages)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert pages and result.stderr == ""
