"""The recipes of examples/notice: each continues after a notice without loss, with a real process and a real file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from deadlines import a_minute
from dra_agent.device_setup.notice import NoticeDirectory
from dra_agent.device_setup.notice.document import NONE, Phase, notice
from eventually import DEADLINE_S, eventually

RECIPES = Path(__file__).resolve().parents[2] / "examples/notice"
PYTHON = (sys.executable, "-S")
SHELL, WORKER = ("sh", str(RECIPES / "checkpoint-loop.sh")), (*PYTHON, str(RECIPES / "worker.py"))
ELASTIC, SERVER = (*PYTHON, str(RECIPES / "elastic_training.py")), (*PYTHON, str(RECIPES / "server.py"))


class Container:
    """Processes with the notice file of one claim."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._current = NONE
        self._notices = NoticeDirectory(path / "notices", current=lambda: self._current)
        self._notices.create("claim", a_minute())
        self.processes: list[subprocess.Popen[str]] = []

    def announce(self, phase: Phase) -> None:
        self._current = notice(phase)
        self._notices.update("claim", a_minute())

    def start(self, *command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "DRA_AGENT_NOTICE_DIR": str(self._notices.folder("claim"))}
        process = subprocess.Popen(
            command, cwd=self.path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.processes.append(process)
        return process


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path)
    yield container
    for process in container.processes:
        process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def end(process: subprocess.Popen[str]) -> str:
    """Return the output of a process that ends well."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("recipe", [SHELL, WORKER], ids=["shell", "python"])
def test_a_loop_saves_its_progress_at_the_notice_and_continues_there(
    container: Container, recipe: tuple[str, ...]
) -> None:
    checkpoint = container.path / "checkpoint"
    process = container.start(*recipe, str(checkpoint), "1000000", "0.001")
    assert process.stdout is not None and process.stdout.readline() == "starts at step 0\n"
    container.announce("hint")
    eventually(checkpoint.exists)
    assert int(checkpoint.read_text()) % 10 == 0
    container.announce("notice")
    assert "saved step" in end(process)
    saved = int(checkpoint.read_text())
    container.announce("cancelled")
    assert f"starts at step {saved}\n" in end(container.start(*recipe, str(checkpoint), str(saved + 2), "0.001"))
    assert checkpoint.read_text().strip() == str(saved + 2)


def test_all_ranks_stop_at_one_step_and_continue_with_fewer_workers(container: Container) -> None:
    checkpoint = container.path / "checkpoint"
    process = container.start(*ELASTIC, "3", str(checkpoint), "1000000", "0.001")
    container.announce("hint")
    eventually(checkpoint.exists)
    container.announce("notice")
    assert "stopped at step" in end(process)
    saved = json.loads(checkpoint.read_text())
    assert saved["weight"] == pytest.approx(saved["step"])
    container.announce("none")
    output = end(container.start(*ELASTIC, "2", str(checkpoint), str(saved["step"] + 3), "0.001"))
    assert "2 workers\nfinished\n" in output
    continued = json.loads(checkpoint.read_text())
    assert continued["step"] == saved["step"] + 3 and continued["weight"] == pytest.approx(continued["step"])


def respond(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_server_finishes_its_requests_and_accepts_no_new_ones(container: Container) -> None:
    process = container.start(*SERVER, "0", "0")
    assert process.stdout is not None
    port = int(re.findall(r"\d+", process.stdout.readline())[0])
    # A request that is not complete: it ends when the test sends the rest.
    request = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    request.putrequest("POST", "/generate")
    request.putheader("Content-Length", "5")
    request.endheaders(b"he")
    eventually(lambda: respond(port, "GET", "/healthz") == (200, "1"))
    container.announce("notice")
    assert process.stdout.readline() == "drains\n"
    assert respond(port, "GET", "/healthz") == (503, "1")
    assert respond(port, "POST", "/generate", "hello") == (503, "draining")
    container.announce("cancelled")
    assert process.stdout.readline() == "serves again\n"
    assert respond(port, "POST", "/generate", "hello") == (200, "HELLO")
    container.announce("notice")
    assert process.stdout.readline() == "drains\n"
    request.send(b"llo")
    response = request.getresponse()
    assert (response.status, response.read()) == (200, b"HELLO")
    assert end(process) == "drained\n"


def shell_server(on_sigterm: str) -> tuple[str, str, str]:
    """Return a server that runs commands at SIGTERM and ends.

    It starts no background process: a signal that reaches a child of a shell before its exec is lost.
    """
    return "sh", "-c", f"trap '{on_sigterm}; exit 0' TERM; echo serves; while :; do sleep 0.05; done"


def test_a_wrapper_sends_sigterm_at_the_notice(container: Container) -> None:
    wrapper = str(RECIPES / "drain-on-notice.sh")
    process = container.start("sh", wrapper, *shell_server("echo drains"))
    assert process.stdout is not None and process.stdout.readline() == "serves\n"
    container.announce("notice")
    assert end(process) == "drains\n"
    container.announce("cancelled")
    assert container.start("sh", wrapper, "sh", "-c", "exit 3").wait(DEADLINE_S) == 3


def test_a_wrapper_waits_for_the_drain_when_its_pod_is_evicted(container: Container, tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    drain = f"echo drains; while [ ! -e {drained} ]; do sleep 0.05; done; echo done"
    process = container.start("sh", str(RECIPES / "drain-on-notice.sh"), *shell_server(drain))
    assert process.stdout is not None and process.stdout.readline() == "serves\n"
    container.announce("notice")
    assert process.stdout.readline() == "drains\n"
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    drained.touch()
    assert end(process) == "done\n"


def test_a_server_survives_the_end_of_its_notice_file(container: Container) -> None:
    process = container.start(*SERVER, "0")
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[-1])
    (container.path / "notices/claim/notice.json").unlink()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    assert respond(port, "GET", "/healthz") == (200, "0")
    process.terminate()
    assert end(process) == "drains\ndrained\n"
