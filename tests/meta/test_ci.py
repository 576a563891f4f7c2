"""`make test` and `make test-rest` run every part once; their last lines name failures and what is not covered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("slow", "quick", "other")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A Makefile with parts that only print their name; a part fails if the file fails-PART exists."""
    (tmp_path / "Makefile").write_text(
        "\n".join(f"{part}:\n\t@echo ran {part}; test ! -e fails-{part}" for part in PARTS) + "\n"
    )
    return tmp_path


def run_parts(checkout: Path, name: str = "test") -> subprocess.CompletedProcess[str]:
    """Run the parts as from a shell: `make check` runs these tests, and a make within make prints more lines."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = [sys.executable, str(ROOT / "tests" / "run_parts.py"), name, *PARTS]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)


def test_all_parts_run_and_pass(checkout: Path) -> None:
    result = run_parts(checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "make test: passed: slow quick other"
    assert "ran slow" in result.stdout
    for part in PARTS[1:]:
        assert f"== make {part}: passed (target/test/{part}.log)" in result.stdout
        assert f"ran {part}" in (checkout / "target/test" / f"{part}.log").read_text()


def test_the_output_of_a_failing_part_follows_its_name_and_the_others_run(checkout: Path) -> None:
    for part in ("slow", "quick"):
        (checkout / f"fails-{part}").touch()
    result = run_parts(checkout)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("make test: FAILED: slow quick. ")
    assert re.search(r"^== make quick: FAILED .*\nran quick\n", result.stdout, re.MULTILINE), result.stdout
    assert "== make other: passed" in result.stdout


@pytest.mark.parametrize("name", ["test", "test-rest"])
def test_what_is_not_covered_is_printed_with_the_command_that_covers_it(checkout: Path, name: str) -> None:
    lines = run_parts(checkout, name).stdout.splitlines()
    commands = [line.split("  ")[1] for line in lines if line.startswith("  make ")]
    assert ("make test-all" in commands) == (name == "test")
    assert {"make test-cluster", "make test-packages", "make test-vm", "make test-gpu"} <= set(commands)
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE), command


def test_no_part_is_retried() -> None:
    run, makefile = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    assert re.findall(r"^.*make test-all.*$", run, re.MULTILINE) == ["DRA_AGENT_TEST_ORACLES=required make test-all"]
    assert re.findall(r"^.*make test-cluster.*$", run, re.MULTILINE) == ["make test-cluster ARGS='-m \"not extended\"'"]
    for retry in (".ci/twice", "-again", "last-failed", "--lf", "reruns"):
        assert retry not in makefile + run
