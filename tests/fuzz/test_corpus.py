"""Every committed input of a Python target keeps its properties; `rust/fuzz/tests/corpus.rs` checks the Rust ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import CORPUS, PYTHON, ROOT

DEADLINE_S = 600


def replay(name: str, files: list[Path], temporary: Path) -> subprocess.CompletedProcess[str]:
    """Check inputs in a separate process: a target changes its process and serves until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "fuzz.replay", name, *map(str, files)],
        cwd=ROOT / "tests",
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("name", [target.name for target in PYTHON])
def test_committed_inputs_keep_the_properties_of_their_target(name: str, short_path: Path) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs, f"no corpus of {name}"
    result = replay(name, inputs, short_path)
    assert result.returncode == 0, result.stderr


def test_a_failing_input_is_named(short_path: Path) -> None:
    absent = short_path / "absent"
    result = replay("config", [absent], short_path)
    assert result.returncode != 0 and f"{absent}: FileNotFoundError" in result.stderr
