"""The modules that a piece of the product loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from eventually import DEADLINE_S


def loaded_modules(code: str, *arguments: str, cwd: Path | None = None) -> set[str]:
    """Run code in a new interpreter, and return the names of all modules that are loaded at its end.

    The run is not part of a measurement of coverage, which loads further modules.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)", *arguments]
    run = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd, env=environment, timeout=DEADLINE_S
    )
    return set(run.stdout.split())
