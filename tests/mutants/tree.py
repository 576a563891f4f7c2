"""A copy of the packages with its own interpreter, in which one file at a time is mutated.

The interpreter imports the copy from any working directory and with any environment: agents, helpers and container
hooks that tests start as processes run the mutant too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "python"
_TRACING = Path(__file__).with_name("tracing.py")


class Tree:
    """The copy of one worker, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "python"
        self.python = folder / "venv" / "bin" / "python"

    def build(self) -> None:
        """Create it from the current checkout."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in SOURCE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = self.source / path.relative_to(SOURCE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
        environment = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", environment], check=True)
        site = next(environment.glob("lib/python*/site-packages"))
        installed = sysconfig.get_path("purelib")
        start = (
            f"import os; os.environ.get('DRA_AGENT_MUTANTS_TRACE') and "
            f"exec(compile(open({str(_TRACING)!r}).read(), {str(_TRACING)!r}, 'exec'), "
            f"{{'__name__': 'dra_agent_mutants_trace'}})"
        )
        (site / "mutants.pth").write_text(f"{self.source}\n{installed}\n{start}\n")
        command = self.python.with_name("dra-agent")
        command.write_text(
            f"#!{self.python}\n"
            f"import sys\nfrom dra_agent.cli.main import main\nsys.argv[0] = {str(command)!r}\nsys.exit(main())\n"
        )
        command.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRA_AGENT_"))}
        return {**kept, "PYTHONPATH": str(ROOT / "tests")}
