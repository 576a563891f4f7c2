"""Simulated hosts, and programs that talk to their NVML through the ordinary pynvml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dra_agent.host import Host
from dra_simulate import build

PREAMBLE = """
import ctypes, json, sys
import pynvml as nvml
nvml.nvmlLib = ctypes.CDLL(sys.argv[1])

def outcome(function, *arguments):
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        return f"error {error.value}"

def report(value):
    print(json.dumps(value, default=lambda value: value.decode() if isinstance(value, bytes) else list(value)))
"""


@pytest.fixture
def dgx(tmp_path: Path) -> Path:
    """The root of a simulated DGX H100."""
    root = tmp_path / "dgx"
    build("dgx-h100", root)
    return root


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    """Hosts by profile that tests do not change; each is built once."""
    folder = tmp_path_factory.mktemp("standing")
    return cache(lambda profile: build(profile, folder / profile))


@pytest.fixture
def standing_dgx(standing: Callable[[str], Host]) -> Path:
    """The root of a simulated DGX H100 that tests do not change."""
    return standing("dgx-h100").sysfs.parent


@pytest.fixture
def program() -> Callable[..., Any]:
    """Run a program in another process, against a host's NVML; the value of its last `report` is the result."""

    def run(root: Path, source: str, *, initialise: bool = True, **environment: str) -> Any:
        script = PREAMBLE + ("nvml.nvmlInit()\n" if initialise else "") + source
        command = [sys.executable, "-c", script, str(root / "lib" / "libnvidia-ml.so.1")]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
