"""Commands of users without root: which agent they reach, and what they report about one that they may not reach."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.manifests import CLASS, write
from standalone.service_thread import ServiceThread
from unprivileged import home_for_everyone, without_root

Command = Callable[..., tuple[int, str, str]]


class Announcement(io.StringIO):
    """Standard error that calls a function when the command announces that it waits."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call: Callable[[], object] | None = call

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._call is not None and "waiting up to" in self.getvalue():
            call, self._call = self._call, None
            call()
        return written


def test_a_command_finds_the_users_agent_that_starts_while_it_waits(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preparer: Any, devices: Any
) -> None:
    monkeypatch.delenv("DRA_AGENT_STATE_DIR")
    monkeypatch.setenv("DRA_AGENT_CONFIG", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    write(Path("class.yaml"), CLASS)
    started: list[ServiceThread] = []

    def start() -> None:
        (tmp_path / "dra-agent").mkdir()
        started.append(ServiceThread(tmp_path / "dra-agent", preparer, devices))

    errors = Announcement(start)
    monkeypatch.setattr(sys, "stderr", errors)
    try:
        assert command("claim", "apply", "-f", "class.yaml", "--wait-for-agent", "60")[0] == 0, errors.getvalue()
    finally:
        for service in started:
            service.stop()
    assert started, "the agent was not started by the announcement"


@pytest.fixture
def home() -> Iterator[Path]:
    with home_for_everyone() as directory:
        yield directory


@pytest.mark.parametrize("words", ["claim list", "claim holders", "claim release a/b", "explain claim/a"])
def test_a_state_directory_of_root_is_reported(words: str, home: Path) -> None:
    prefix = without_root(home)
    state = home / "state"
    state.mkdir(mode=0o700)
    if not prefix:
        state.chmod(0)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "DRA_AGENT_STATE_DIR": str(state)}
    result = subprocess.run(
        [*prefix, str(home / "bin/dra-agent"), *words.split()],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    state.chmod(0o700)
    assert result.returncode == 1, result.stderr
    assert str(state) in result.stderr and "root" in result.stderr
    assert "internal error" not in result.stderr
