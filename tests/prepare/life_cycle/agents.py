"""Starting, calling and killing agents, on the side of the test."""

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
from prepare.life_cycle.protocol import AgentSettings, Call, Event

TESTS = Path(__file__).resolve().parents[2]


class DiedError(Exception):
    """The agent was killed at the chosen point."""


class AgentFactory:
    """The process that forks agents within milliseconds."""

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
def agent_factory(folder: Path) -> Iterator[AgentFactory]:
    factory = AgentFactory(folder)
    try:
        yield factory
    finally:
        factory.close()


class RunningAgent:
    """An agent from its start to its end."""

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
        self._pending: list[Event] = []

    def send_call(self, operation: Any, **arguments: Any) -> Event:
        """Return the response, or an event that the call hangs. Raises DiedError if the agent was killed meanwhile."""
        self._number += 1
        self._connection.sendall(msgspec.json.encode(Call(self._number, operation, **arguments)) + b"\n")
        return self.wait_for_event(self._number)

    def wait_for_event(self, number: int) -> Event:
        """Wait for the next event of a call."""
        while True:
            for event in self._pending:
                if event.number == number:
                    self._pending.remove(event)
                    assert event.kind != "broken", event.text
                    return event
            self._pending.append(self._next())

    def kill(self) -> None:
        """Kill the agent; when this returns, its locks are released."""
        if not self._dead:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self._wait_for_exit()

    def _next(self) -> Event:
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            self._wait_for_exit()
            raise DiedError
        return msgspec.json.decode(line, type=Event)

    def _wait_for_exit(self) -> None:
        self._dead = True
        poller = select.poll()
        poller.register(self._process, select.POLLIN)
        assert poller.poll(4000 * DEADLINE_S), "an agent that was killed has not ended"
        self._close()
        os.close(self._process)

    def _close(self) -> None:
        self._lines.close()
        self._connection.close()
