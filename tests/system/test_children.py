"""Child processes with the agent's own code are started in one place."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dra_agent import child
from dra_agent.command import HostCommand
from eventually import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
CHILD_MODULE = ROOT / "python/dra_agent/child.py"
INTERPRETER = re.compile(r"sys\.executable|[\"' /]python3?[\"' ]|[\"']-m[\"']")


def test_only_one_module_starts_an_interpreter() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "python").rglob("*.py"))
        if path != CHILD_MODULE
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if INTERPRETER.search(line) and not line.lstrip().startswith(("#", '"""'))
    ]
    assert not elsewhere, f"start it through dra_agent.child: {elsewhere}"


def test_the_installed_command_isolates_the_interpreter() -> None:
    installer = (ROOT / "deploy/install.py").read_text()
    assert 'LAUNCHER = """#!{python} -I\n' in installer
    started = re.findall(r"subprocess\.run\(\[python, (\S+),", installer)
    assert started == ['"-I"'], started


def test_a_child_imports_nothing_from_its_current_directory(tmp_path: Path) -> None:
    # Children start in another directory, which alone would hide a missing option.
    (tmp_path / "dra_agent").mkdir()
    (tmp_path / "dra_agent/__init__.py").write_text("raise SystemExit('code of the current directory')\n")
    done = subprocess.run(
        child.command("dra_agent", "--help"),
        env=child.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


SEARCH_PATHS = {
    "LD_LIBRARY_PATH": ("./dgx/lib:/opt/lib::../lib", "{here}/dgx/lib:/opt/lib:{here}/../lib"),
    "PATH": (f"bin:./own::{os.environ['PATH']}", os.environ["PATH"]),
}
"""Variables as a user sets them, and as a child gets them: programs are never searched in a relative directory."""


@pytest.mark.parametrize("variable", SEARCH_PATHS)
@pytest.mark.parametrize("starts", ["module", "tool"])
def test_a_child_searches_the_directories_that_its_caller_named(
    variable: str, starts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, expected = SEARCH_PATHS[variable]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, given)
    expected = expected.format(here=tmp_path)
    if starts == "module":
        assert child.environment()[variable] == expected
        own = os.defpath if variable == "PATH" else f"{tmp_path}/own"
        assert child.environment({variable: "./own"})[variable] == own
        return
    printed = HostCommand(Path("/usr/bin/env"), DEADLINE_S).run([]).output.decode()
    assert f"{variable}={expected}\n" in printed
    printed = HostCommand(Path("/usr/bin/env"), DEADLINE_S, environment={"X": "1"}).run([]).output.decode()
    assert f"{variable}={expected}\n" in printed


def test_a_preloaded_library_is_the_one_that_the_caller_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A name without a slash is looked up in the search path.
    monkeypatch.setenv("LD_PRELOAD", "./a.so libb.so:/c.so")
    assert child.environment()["LD_PRELOAD"] == f"{tmp_path}/a.so:libb.so:/c.so"
