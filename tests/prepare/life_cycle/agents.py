"""Starting agents, asking them and killing them: the side of a test."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from eventually import DEADLINE_S
from prepare.life_cycle.words import AgentSettings, Call, Event

TESTS = Path(__file__).resolve().parents[2]


class DiedError(Exception):
    """The agent was killed at the point that was chosen."""


class Nursery:
    """The process that starts agents, each within milliseconds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agents"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prepare.life_cycle.agent_process", str(self._path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONWARNINGS": "ignore"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "agents cannot be started"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, settings: AgentSettings) -> RunningAgent:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(4 * DEADLINE_S)
        connection.connect(str(self._path))
        return RunningAgent(connection, settings)


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    started = Nursery(folder)
    try:
        yield started
    finally:
        started.close()


class RunningAgent:
    """One agent, from its start to its death."""

    def __init__(self, connection: socket.socket, settings: AgentSettings) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        connection.sendall(msgspec.json.encode(settings) + b"\n")
        self._dead = True
        line = self._lines.readline()
        if not line:
            self._close()
            raise AssertionError("an agent ended while it started")
        ready = msgspec.json.decode(line, type=Event)
        self._process, self._dead = os.pidfd_open(ready.pid), False
        if ready.kind != "ready":
            self.kill()
            raise AssertionError(ready.text)
        self.problems = ready.problems
        self._number = 0
        self._told: list[Event] = []

    def ask(self, what: Any, **more: Any) -> Event:
        """Give the answer, or that the call hangs now. DiedError where the agent was killed meanwhile."""
        self._number += 1
        self._connection.sendall(msgspec.json.encode(Call(self._number, what, **more)) + b"\n")
        return self.answer(self._number)

    def answer(self, number: int) -> Event:
        """Wait for the next word about a call."""
        while True:
            for event in self._told:
                if event.number == number:
                    self._told.remove(event)
                    assert event.kind != "broken", event.text
                    return event
            self._told.append(self._next())

    def kill(self) -> None:
        """End it at once; when this returns, its locks are free."""
        if not self._dead:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self._died()

    def _next(self) -> Event:
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            self._died()
            raise DiedError
        return msgspec.json.decode(line, type=Event)

    def _died(self) -> None:
        self._dead = True
        waiting = select.poll()
        waiting.register(self._process, select.POLLIN)
        assert waiting.poll(4000 * DEADLINE_S), "an agent that was killed has not ended"
        self._close()
        os.close(self._process)

    def _close(self) -> None:
        self._lines.close()
        self._connection.close()
