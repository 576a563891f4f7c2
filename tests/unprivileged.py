"""Run the agent's command as a user without permissions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import permissions

ROOT = Path(__file__).resolve().parents[1]
UNPRIVILEGED = 65534
AGENT = Path(sys.executable).with_name("dra-agent")


def script(path: Path, text: str) -> None:
    """Write a program of a shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@contextmanager
def home_for_everyone() -> Iterator[Path]:
    """Make a directory that every user may enter, unlike those of pytest; root may change all files in it."""
    with permissions.ignored(), tempfile.TemporaryDirectory(prefix="dra-") as directory:
        yield Path(directory)


def without_root(directory: Path) -> tuple[str, ...]:
    """Prepare `directory`, with bin/dra-agent, for a user without permissions; return the prefix of its commands."""
    if os.geteuid() != 0:
        script(directory / "bin/dra-agent", f'exec {AGENT} "$@"')
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    # The interpreter of the environment may be inside root's home directory; the system's has the same libraries.
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = ("setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups")
    path = ":".join(entry for entry in (str(ROOT / "python"), *sys.path) if entry.endswith(("python", "packages")))
    code = "import sys; from dra_agent.cli.main import main; sys.exit(main())"
    script(directory / "bin/dra-agent", f'PYTHONPATH={path} exec {python} -c "{code}" "$@"')
    shutil.chown(directory, UNPRIVILEGED, UNPRIVILEGED)
    version = [*prefix, str(directory / "bin/dra-agent"), "--version"]
    if subprocess.run(version, capture_output=True, check=False).returncode != 0:
        pytest.skip("another user cannot read this checkout or its Python")
    return prefix
