"""What fails once is tried again and named; what is no failed test, or fails twice, is red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = """\
whole: before first
before:
	@true
first:
\t{python} -m pytest {tests}
again:
\t@echo again >> tries
\t{python} -m pytest --last-failed --last-failed-no-failures none {tests}
"""
GOOD = "def test_good(): pass\n"
ONCE = """
from pathlib import Path
def test_once():
    seen = Path("seen")
    before = seen.exists()
    seen.touch()
    assert before
"""
ALWAYS = "def test_always(): assert False\n"
CRASH = ALWAYS + "def test_crash():\n    import os\n    os._exit(3)\n"
ENDS = ALWAYS + "def test_ends():\n    import pytest\n    pytest.exit('enough')\n"
BROKEN = "import nothing_of_this_name\n"


@pytest.mark.parametrize(
    ("source", "good", "tries", "says"),
    [
        (GOOD, True, 0, "1 passed"),
        (GOOD + ONCE, True, 1, "GOOD ONLY AT THE SECOND TRY:\ntest_it.py::test_once\n"),
        (ONCE + ALWAYS, False, 1, "FAILED AT FIRST, and tried once more, alone:\ntest_it.py::test_once\n"),
        (CRASH, False, 0, "no failed test"),
        (ENDS, False, 0, "no failed test"),
        (BROKEN, False, 0, "no failed test"),
    ],
    ids=["good", "once", "always", "crash", "ends early", "broken"],
)
def test_only_tests_that_failed_get_a_second_try(
    tmp_path: Path, source: str, good: bool, tries: int, says: str
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable, tests="test_it.py"))
    (tmp_path / "test_it.py").write_text(source)
    ran = subprocess.run(
        [ROOT / ".ci" / "twice", "whole", "first", "again", ".pytest_cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) == good, ran.stdout
    tried = tmp_path / "tries"
    assert (len(tried.read_text().splitlines()) if tried.exists() else 0) == tries, ran.stdout
    assert says in ran.stdout


def test_what_failed_in_an_earlier_run_does_not_stand_for_a_build_that_fails(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("whole: before first\nbefore:\n\tfalse\nfirst:\n\ttrue\nagain:\n\ttrue\n")
    remembered = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    remembered.parent.mkdir(parents=True)
    remembered.write_text('{"test_it.py::test_old": true}')
    command = [ROOT / ".ci" / "twice", "whole", "first", "again", ".pytest_cache"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and "no failed test" in ran.stdout


def test_make_test_runs_before_a_change_lands_and_ends_with_what_is_tried_again() -> None:
    makefile, run = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    assert ".ci/twice test test-python test-again " in run
    (parts,) = (line for line in makefile.splitlines() if line.startswith("test: "))
    # A second try of the last part says nothing of parts behind it, which would not have run.
    assert parts.partition("##")[0].split()[-1] == "test-python"
