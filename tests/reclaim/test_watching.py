"""`dra-agent reclaim status --watch`: live progress on a terminal, and one line per change in a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eventually import DEADLINE_S, eventually
from reclaim.agent_process import Agent, Start
from reclaim.pty_command import Terminal


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file for which hooks wait."""
    return tmp_path / "gate"


@pytest.fixture
def agent(start: Start, tmp_path: Path, claims: Path, gate: Path) -> Agent:
    """An agent with two prepared claims, whose hook ends when the gate file exists."""
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\nwhile ! test -e {gate}; do sleep 0.05; done\n")
    script.chmod(0o700)
    agent = start(f'[reclaim]\nhook = ["{script}"]\nhook_seconds = 600\n')
    assert agent.command("claim", "apply", "-f", str(claims))[0] == 0
    return agent


def test_a_terminal_shows_progress_and_remaining_claims(agent: Agent, gate: Path) -> None:
    agent.command("reclaim", "start", "--in", "9000")
    with Terminal("reclaim", "status", "--watch", "--state-dir", str(agent.state_dir)) as terminal:
        terminal.wait_for(r"claims released .* 0/2 .*8\d\d\d s left, waits for default/[ab], default/[ab]")
        gate.touch()
        code, output = terminal.end()
    assert code == 0
    assert output.splitlines()[0].startswith("notice: the node is being reclaimed in 8")
    assert output.count("released") == 2 and re.search(r"default/a +released +\d", output)


def test_a_file_gets_a_line_per_change_and_the_result_as_json(agent: Agent, tmp_path: Path, gate: Path) -> None:
    start_time = time.monotonic()
    agent.command("reclaim", "start", "--in", "9000")
    command = [sys.executable, "-m", "dra_agent", "reclaim", "status", "--watch", "-o", "json"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "lines").open("w") as err:
        watch = subprocess.Popen([*command, "--state-dir", str(agent.state_dir)], stdout=out, stderr=err)
    eventually(lambda: "0 of 2 claims released, waits" in (tmp_path / "lines").read_text())
    gate.touch()
    code = watch.wait(DEADLINE_S)
    duration = time.monotonic() - start_time
    status = json.loads((tmp_path / "out").read_text())
    lines = (tmp_path / "lines").read_text().strip().splitlines()
    assert code == 0 and status["complete"] and status["phase"] == "notice"
    assert any(line.startswith("0 of 2 claims released, waits for default/") for line in lines), lines
    assert len(lines) == len(set(lines)) <= 4, "no line per poll"
    assert {(claim_["name"], claim_["state"]) for claim_ in status["claims"]} == {("a", "released"), ("b", "released")}
    assert all(0 <= claim_["seconds"] <= duration for claim_ in status["claims"])


def test_a_reclaim_on_a_terminal_is_started_after_confirmation(agent: Agent, gate: Path) -> None:
    gate.touch()
    start_words = ("reclaim", "start", "--in", "9000", "--state-dir", str(agent.state_dir))
    for answer, code, phase in (("n\n", 1, "none"), ("\n", 1, "none"), ("y\n", 0, "notice")):
        with Terminal(*start_words, interactive=True) as terminal:
            terminal.wait_for(r"this releases 2 claims of this node\s+default/a\s+default/b\s+start\? \[y/N\] ")
            terminal.type(answer)
            assert terminal.end()[0] == code
        assert agent.status()["phase"] == phase
    agent.command("reclaim", "cancel")
    with Terminal(*start_words, "--yes", interactive=True) as terminal:
        assert terminal.end()[0] == 0 and "start?" not in terminal.shown
    eventually(lambda: agent.status()["complete"])
    code, text = agent.command("reclaim", "start")
    assert code == 0 and "no claim holds a device" in text and "start?" not in text, "a pipe is not asked"


def test_an_incomplete_release_at_the_deadline_is_a_failure(start: Start, tmp_path: Path, claims: Path) -> None:
    agent = start("")
    agent.command("claim", "apply", "-f", str(claims))
    # A directory at the path of a CDI spec prevents its removal.
    blocked = next(path for path in (tmp_path / "cdi").iterdir() if "claim" in path.name)
    text = blocked.read_bytes()
    blocked.unlink()
    (blocked / "in the way").mkdir(parents=True)
    try:
        agent.command("reclaim", "start", "--in", "3")
        code, output = agent.command("reclaim", "status", "--watch")
        assert code == 1 and "its deadline was" in output and "prepared" in output
    finally:
        (blocked / "in the way").rmdir()
        blocked.rmdir()
        blocked.write_bytes(text)


def test_a_watch_ends_when_the_notice_is_canceled(agent: Agent) -> None:
    agent.command("reclaim", "start", "--in", "9000")
    with Terminal("reclaim", "status", "--watch", "--state-dir", str(agent.state_dir)) as terminal:
        terminal.wait_for("0/2")
        agent.command("reclaim", "cancel")
        code, output = terminal.end()
    assert code == 0 and output.startswith("cancelled")
