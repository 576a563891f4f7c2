"""Builds Go code of Kubernetes, whose results tests compare with."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRED = "DRA_AGENT_TEST_ORACLES"
"""`required`: a test without its oracle fails instead of being skipped."""
PROGRAMS = Path(__file__).resolve().parents[2] / "target" / "oracle"
TRIES = 3
"""Attempts to download Go modules; a proxy can fail temporarily."""


def build(source: Path, name: str, *flags: str) -> Path:
    """Build a program, or skip the test if Go is not installed or its modules cannot be downloaded.

    Programs are kept for later runs: Go compares the sources, and links a program only if they have changed.
    """
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        _skip("Go is not installed")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    for _ in range(TRIES):
        download = _run([go, "mod", "download", *flags], source, environment)
        if download.returncode == 0:
            break
    else:
        _skip(f"the Go modules of tests/oracle/{source.name} cannot be downloaded: {download.stderr.strip()[-300:]}")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    program = PROGRAMS / name
    with (PROGRAMS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may build it
        built = _run([go, "build", "-p", "2", *flags, "-o", str(program), "."], source, environment)
    assert built.returncode == 0, f"tests/oracle/{source.name} does not build:\n{built.stderr}"
    return program


def _run(command: list[str], source: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)


def _skip(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
