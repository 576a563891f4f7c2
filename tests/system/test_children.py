"""Child processes with the agent's own code are started in one place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from dra_agent import child
from eventually import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
CHILD_MODULE = ROOT / "python/dra_agent/child.py"
INTERPRETER = re.compile(r"sys\.executable|[\"' /]python3?[\"' ]|[\"']-m[\"']")


def test_only_one_module_starts_an_interpreter() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "python/dra_agent").rglob("*.py"))
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
