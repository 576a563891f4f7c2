"""A real agent process on a simulated host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventually import eventually


@dataclass
class AgentProcess:
    """`dra-agent run`, and what it said."""

    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the log has the pattern; fail with the log where it never does."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.said())
            assert match or self.process.poll() is None, f"the agent ended ({self.process.returncode}):\n{self.said()}"
            return match

        match = eventually(found, lambda: f"no {pattern!r} in:\n{self.said()}")
        assert match is not None
        return match

    def ready(self) -> AgentProcess:
        self.wait_for(r"info ready")
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def get(self, path: str) -> tuple[int, str]:
        port = self.wait_for(r"port=(\d+)")[1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


Start = Callable[..., AgentProcess]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def start(tmp_path: Path, state: Path) -> Iterator[Start]:
    """Start agents on the state directory; whatever is left of them is killed in the end."""
    agents: list[AgentProcess] = []

    def start(*flags: str, environment: dict[str, str] | None = None) -> AgentProcess:
        log = tmp_path / f"log-{len(agents)}"
        command = [sys.executable, "-m", "dra_agent", "run", "--standalone", "--state-dir", str(state)]
        command += ["--cdi-dir", str(tmp_path / "cdi"), "--simulate", "vm-1gpu", "--node-name", "node-a", *flags]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, text=True, env={**variables, **(environment or {})}
            )
        agents.append(AgentProcess(process, log))
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait(60)
