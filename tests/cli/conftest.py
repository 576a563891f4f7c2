"""A running service of standalone mode with two devices, and commands in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cli.main import main
from standalone.conftest import Devices, Preparer
from standalone.service_thread import ServiceThread

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def devices() -> Devices:
    return Devices("gpu-0", "gpu-1")


@pytest.fixture
def preparer() -> Preparer:
    return Preparer()


@pytest.fixture
def agent(tmp_path: Path, preparer: Any, devices: Any) -> Iterator[ServiceThread]:
    (tmp_path / "state").mkdir()
    running = ServiceThread(tmp_path / "state", preparer, devices)
    yield running
    running.stop()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty directory; return its exit code, output and errors."""
    for name in [name for name in os.environ if name.startswith(("DRA_AGENT_", "KUBE"))]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRA_AGENT_STATE_DIR", str(tmp_path / "state"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
