"""A real agent process on a simulated host."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import preloaded
from eventually import eventually


@dataclass
class AgentProcess:
    """`dra-agent run`, and its log."""

    process: subprocess.Popen[str] | preloaded.Command
    log: Path

    def log_text(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the log matches the pattern; fail with the log otherwise."""

        def find_match() -> re.Match[str] | None:
            # checked before the log is read: the agent may log this last, and exit
            has_exited = self.process.poll() is not None
            match = re.search(pattern, self.log_text())
            assert match or not has_exited, f"the agent ended ({self.process.returncode}):\n{self.log_text()}"
            return match

        match = eventually(find_match, lambda: f"no {pattern!r} in:\n{self.log_text()}")
        assert match is not None
        return match

    def ready(self) -> AgentProcess:
        self.wait_for(r"info ready")
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def get(self, path: str) -> tuple[int, str]:
        port = self.wait_for(r"port=(\d+)\s")[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


class ServiceManager:
    """The systemd side of sd_notify. It reads at once, because an agent drops messages on a full queue."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[str] = []
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(str(path))
        self._thread = threading.Thread(target=self._listen, name="service manager")
        self._thread.start()

    def _listen(self) -> None:
        while message := self._channel.recv(4096).decode():
            self.messages.append(message)

    def status_messages(self) -> list[str]:
        """Return the messages without watchdog keep-alives."""
        return [message for message in self.messages if message != "WATCHDOG=1"]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(b"", str(self.path))
        self._thread.join()
        self._channel.close()


@pytest.fixture
def service_manager(short_path: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(short_path / "n")
    yield manager
    manager.close()


Start = Callable[..., AgentProcess]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def start(tmp_path: Path, state: Path) -> Iterator[Start]:
    """Start agents on the state directory; remaining agents are killed at the end."""
    agents: list[AgentProcess] = []

    def start(
        *flags: str, environment: dict[str, str] | None = None, patch: str = "", new_interpreter: bool = False
    ) -> AgentProcess:
        """Start an agent; `patch` has statements that run first, for time limits on which a test must not depend."""
        log = tmp_path / f"log-{len(agents)}"
        command = ["run", "--standalone", "--state-dir", str(state)]
        command += ["--cdi-dir", str(tmp_path / "cdi"), "--simulate", "vm-1gpu", "--node-name", "node-a", *flags]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables |= environment or {}
        process: subprocess.Popen[str] | preloaded.Command
        with log.open("w") as file:
            if new_interpreter:
                whole = [sys.executable, "-m", "dra_agent", *command]
                process = subprocess.Popen(whole, stdout=file, stderr=file, text=True, env=variables)
            else:
                process = preloaded.Command(command, stdout=file, stderr=file, env=variables, patch=patch)
        agents.append(AgentProcess(process, log))
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait(60)
