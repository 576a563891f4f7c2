"""Commands of users without root: which agent they reach, and what they report about one that they may not reach."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
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
    result = as_user([*prefix, str(home / "bin/dra-agent"), *words.split()], environment)
    state.chmod(0o700)
    assert result.returncode == 1, result.stderr
    assert str(state) in result.stderr and "root" in result.stderr
    assert "internal error" not in result.stderr


def as_user(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=environment["HOME"], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("is_hidden", [True, False], ids=["state directory", "socket"])
def test_devices_are_not_free_where_the_agent_may_not_be_asked(home: Path, is_hidden: bool) -> None:
    prefix = without_root(home)
    host = dra_simulate.build("vm-1gpu", home / "host")
    state = home / "state"
    (state / "ledger").mkdir(parents=True)
    (state / "ledger").chmod(0o700 if prefix else 0)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "DRA_AGENT_STATE_DIR": str(state)}
    roots = ("--sysfs-root", str(host.sysfs), "--dev-root", str(host.dev))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(state / "reclaim.sock"))
        listener.listen()
        (state / "reclaim.sock").chmod(0o600 if prefix else 0)
        state.chmod((0o700 if prefix else 0) if is_hidden else 0o755)
        table, document, tree, doctor = (
            as_user([*prefix, str(home / "bin/dra-agent"), *words, *roots], environment)
            for words in (["devices"], ["devices", "-o", "json"], ["topology"], ["doctor", "-o", "json"])
        )
    state.chmod(0o700)
    (state / "ledger").chmod(0o700)
    assert (table.returncode, document.returncode, tree.returncode, doctor.returncode) == (1, 1, 1, 1), table.stderr
    assert "claims unknown" in table.stdout and " ok" not in table.stdout
    assert "no permission to connect to the agent" in table.stderr and "root" in table.stderr
    shown = json.loads(document.stdout)
    assert {device["held_by"] for device in shown["devices"]} == {None} and "no permission" in shown["notes"][0]
    assert "free" not in tree.stdout and "no permission" in tree.stderr
    findings = json.loads(doctor.stdout)["findings"]
    assert any("no permission to connect" in one["what"] for one in findings if one["severity"] == "problem")
