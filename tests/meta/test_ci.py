"""`make test` runs every part once, and names failures in its last lines."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile, with parts that only print their name; a part fails if the file fails-PART exists."""
    makefile = (ROOT / "Makefile").read_text()
    target = re.search(r"^TEST_PARTS := .*\n(?:test: .*\n(?:\t.*\n)+)", makefile, re.MULTILINE)
    assert target is not None
    parts = "\n".join(f"{part}:\n\t@echo ran {part}; test ! -e fails-{part}" for part in _parts())
    (tmp_path / "Makefile").write_text(f"{target[0]}\nbuild:\n{parts}\n")
    return tmp_path


def run_make(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run `make test` as from a shell: `make check` runs these tests, and a make within make prints more lines."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "test"]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)


def _parts() -> list[str]:
    lines: list[str] = re.findall(r"^TEST_PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (line,) = lines
    return line.split()


def test_all_parts_run_and_pass(checkout: Path) -> None:
    result = run_make(checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "make test: passed: test-rust lint test-python"
    assert sorted(line for line in result.stdout.splitlines() if line.startswith("ran ")) == sorted(
        f"ran {part}" for part in _parts()
    )


def test_the_output_of_a_part_follows_its_name(checkout: Path) -> None:
    lines = run_make(checkout).stdout
    for part in _parts():
        assert re.search(rf"^== make {part}\b.*\nran {part}\n", lines, re.MULTILINE), lines


def test_a_failing_part_is_named_at_the_end_and_the_others_run(checkout: Path) -> None:
    for part in ("test-rust", "lint"):
        (checkout / f"fails-{part}").touch()
    result = run_make(checkout)
    assert result.returncode != 0
    assert result.stdout.splitlines()[-1].startswith("make test: FAILED: test-rust lint. ")
    assert "ran test-python" in result.stdout


def test_no_part_is_retried() -> None:
    run, makefile = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    assert re.findall(r"^.*make test(?![-\w]).*$", run, re.MULTILINE) == ["DRA_AGENT_TEST_ORACLES=required make test"]
    assert re.findall(r"^.*make test-cluster.*$", run, re.MULTILINE) == ["make test-cluster ARGS='-m \"not extended\"'"]
    for retry in (".ci/twice", "-again", "last-failed", "--lf", "reruns"):
        assert retry not in makefile + run
