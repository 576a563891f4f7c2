"""Installs the simulated nvidia-cuda-mps-control next to a host's NVML, and injects its faults."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Literal

from dra_agent.child import isolated_script
from dra_simulate.tree import replace_file

CONTROL = "nvidia-cuda-mps-control"
_FAULTS, _LOCK = "mps.json", "mps.lock"

Action = Literal["fail", "hang", "crash", "ignore"]


def install(folder: Path) -> None:
    """Write the program into a host's folder, for the interpreter that runs this."""
    # Isolated: without the environment of the caller, and without packages, which would only take time.
    text = isolated_script(Path(__file__).with_name("mps_control.py").read_text()).encode()
    path = folder / CONTROL
    if not path.exists() or path.read_bytes() != text:
        replace_file(path, text)
        path.chmod(0o755)


def inject_fault(
    root: Path, command: str, action: Action | None = None, *, times: int | None = 1, milliseconds: int = 0
) -> None:
    """Let a command take longer and then fail, hang, crash the daemon or do nothing.

    `command` is one of the daemon's, "start", or "multiuser": with "fail" the program does not know that option.
    `times`: so many commands, None for all until `clear_faults`.
    """
    with (root / "lib" / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = root / "lib" / _FAULTS
        faults = json.loads(path.read_text()) if path.exists() else []
        faults.append({"command": command, "action": action, "times": times, "milliseconds": milliseconds})
        replace_file(path, json.dumps(faults).encode())


def clear_faults(root: Path) -> None:
    """Remove the faults; a command that hangs continues to hang."""
    (root / "lib" / _FAULTS).unlink(missing_ok=True)
