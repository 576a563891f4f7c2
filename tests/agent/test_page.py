"""`dra-agent ui` with a running agent, without one, and after it stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import preloaded
from eventually import DEADLINE_S, eventually

from .conftest import Start
from .training_claim import CLAIM


class Ui:
    """A running `dra-agent ui`."""

    def __init__(self, log: Path, state: Path, *arguments: str) -> None:
        self.log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
        environment |= {"HOME": str(log.parent)}
        with log.open("w") as file:
            self.process = preloaded.Command(
                ["ui", "--port", "0", "--state-dir", str(state), *arguments], stdout=file, stderr=file, env=environment
            )
        found = eventually(lambda: re.search(r"http://\S+/\n", log.read_text()), log.read_text)
        assert found is not None
        self.url = found[0].strip()

    def get(self, path: str = "") -> str:
        with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as response:
            return str(response.read().decode())

    def shows(self, pattern: str) -> str:
        """Wait until the page matches the pattern, as a user who loads it again."""
        pages: list[str] = []

        def matches() -> str:
            pages[:] = [self.get()]
            return pages[0] if re.search(pattern, pages[0]) else ""

        return eventually(matches, lambda: f"no {pattern!r} in {pages[-1]}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def ui(tmp_path: Path, state: Path) -> Iterator[Callable[..., Ui]]:
    started: list[Ui] = []

    def start(*arguments: str) -> Ui:
        started.append(Ui(tmp_path / f"ui-{len(started)}", state, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            with suppress(ProcessLookupError):
                one.process.kill()
            one.process.wait(DEADLINE_S)


def run(state: Path, cwd: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    result = preloaded.run(arguments, env={**environment, "DRA_AGENT_STATE_DIR": str(state)}, cwd=cwd)
    assert result.returncode == 0, result.stderr


def test_the_page_follows_the_agent(start: Start, ui: Callable[..., Ui], state: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("[telemetry]\ninterval = 1\n")
    (tmp_path / "claim.yaml").write_text(CLAIM)
    agent = start("--config", str(tmp_path / "agent.toml")).ready()
    run(state, tmp_path, "claim", "apply", "-f", "claim.yaml")
    page = ui()
    shown = page.shows(r"Values were sampled \d+ s ago")
    assert f"with pid {agent.process.pid}" in shown and "No reclaim is active." in shown
    assert re.search(r"gpu-0000-00-04-0.*team/training.*<meter .*0 %.*71 W", shown)
    picture = page.get("topology.svg")
    assert "<svg " in picture and "team/training" in picture and "<script" not in picture
    run(state, tmp_path, "reclaim", "start", "--in", "300", "--why", "maintenance", "--yes")
    shown = page.shows("Notice: the node is being reclaimed")
    assert re.search(r'Time left: <strong role="timer" data-seconds="\d+\.\d">\d+ ', shown)
    assert "operator: maintenance" in shown and "team/training" in shown
    # The notice releases the claim, whose containers may still run: its device is not free.
    picture = page.get("topology.svg")
    assert "gpu 0000:00:04.0" in picture and ">free<" not in picture and "\nfree<" not in picture
    assert agent.end() == 0
    shown = page.shows("No agent responds on this host")
    assert "no agent is running here" in shown
    assert page.end() == 0


def test_the_page_shows_a_scan_without_an_agent(ui: Callable[..., Ui]) -> None:
    page = ui("--simulate", "vm-1gpu")
    shown = page.shows("No agent responds on this host. The devices are those of a scan.")
    assert "gpu-0000-00-04-0" in shown and "Tesla T4" in page.get("topology.svg")
    assert page.end(signal.SIGINT) == 130
    assert page.log.read_text() == page.url + "\n"


SIGNALS_IN_HANDLER = """
import os, signal, sys
from dra_agent.cli.main import main

register, left = signal.signal, 200

def trace(frame, event, argument):
    global left
    if left:
        left -= 1
        os.kill(os.getpid(), signal.SIGTERM)
    return trace

def register_traced(number, handler):
    def traced(number, frame):
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            handler(number, frame)
        finally:
            sys.settrace(before)
    return register(number, traced if callable(handler) else handler)

signal.signal = register_traced
sys.exit(main(sys.argv[1:]))
"""
"""Runs a command whose process gets a signal again at every line of the handler, and of what the handler calls."""


def test_a_second_signal_does_not_keep_it_from_ending(tmp_path: Path, state: Path) -> None:
    """As from `timeout`, which passes a signal on and sends it to its process group too."""
    command = [sys.executable, "-c", SIGNALS_IN_HANDLER, "ui", "--port", "0", "--state-dir", str(state)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    environment |= {"HOME": str(tmp_path)}
    with subprocess.Popen([*command, "--simulate", "vm-1gpu"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(b"http://")
        process.terminate()
        try:
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_a_used_port_is_named(ui: Callable[..., Ui], state: Path, tmp_path: Path) -> None:
    port = ui("--simulate", "vm-1gpu").url.split(":")[2].split("/")[0]
    result = preloaded.run(["ui", "--port", port, "--state-dir", str(state)], env=dict(os.environ), cwd=tmp_path)
    assert result.returncode == 2
    assert f"--port: cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr
    result = preloaded.run(["ui", "--port", "65536"], env=dict(os.environ), cwd=tmp_path)
    assert result.returncode == 2 and "65536 is not a port" in result.stderr
