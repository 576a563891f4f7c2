"""`make test` runs every part, passes or fails at the first try, and names what failed in its last lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile, with parts that do nothing but say their name; one fails if a file of its name is there."""
    makefile = (ROOT / "Makefile").read_text()
    target = re.search(r"^TEST_PARTS := .*\n(?:test: .*\n(?:\t.*\n)+)", makefile, re.MULTILINE)
    assert target is not None
    parts = "\n".join(f"{part}:\n\t@echo ran {part}; test ! -e fails-{part}" for part in _parts())
    (tmp_path / "Makefile").write_text(f"{target[0]}\nbuild:\n{parts}\n")
    return tmp_path


def _parts() -> list[str]:
    lines: list[str] = re.findall(r"^TEST_PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (line,) = lines
    return line.split()


def test_all_parts_run_and_pass(checkout: Path) -> None:
    done = subprocess.run(["make", "test"], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "make test: passed: test-rust lint test-python"
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [f"ran {p}" for p in _parts()]


def test_a_part_that_fails_is_named_in_the_end_and_the_others_run(checkout: Path) -> None:
    for part in ("test-rust", "lint"):
        (checkout / f"fails-{part}").touch()
    done = subprocess.run(["make", "test"], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1].startswith("make test: FAILED: test-rust lint. ")
    assert "ran test-python" in done.stdout


def test_nothing_is_tried_twice_before_a_change_lands() -> None:
    run, makefile = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    assert re.findall(r"^.*make test(?![-\w]).*$", run, re.MULTILINE) == ["DRA_AGENT_TEST_ORACLES=required make test"]
    assert re.findall(r"^.*make test-cluster.*$", run, re.MULTILINE) == ["make test-cluster ARGS='-m \"not extended\"'"]
    for again in (".ci/twice", "-again", "last-failed", "--lf", "reruns"):
        assert again not in makefile + run
