"""`dra-agent reclaim status --watch`: how far a release is, live on a terminal and line by line in a file."""

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
def slow(start: Start, tmp_path: Path, claims: Path, gate: Path) -> Agent:
    """An agent with two prepared claims, whose hook ends when the gate is there."""
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\nwhile ! test -e {gate}; do sleep 0.05; done\n")
    script.chmod(0o700)
    agent = start(f'[reclaim]\nhook = ["{script}"]\nhook_seconds = 600\n')
    assert agent.command("claim", "apply", "-f", str(claims))[0] == 0
    return agent


def test_on_a_terminal_a_bar_says_how_far_it_is_and_who_is_waited_for(slow: Agent, gate: Path) -> None:
    slow.command("reclaim", "start", "--in", "9000")
    with Terminal("reclaim", "status", "--watch", "--state-dir", str(slow.state_dir)) as terminal:
        terminal.wait_for(r"claims released .* 0/2 .*8\d\d\d s left, waits for default/[ab], default/[ab]")
        gate.touch()
        code, said = terminal.end()
    assert code == 0
    assert said.splitlines()[0].startswith("notice: the node is being reclaimed in 8")
    assert said.count("released") == 2 and re.search(r"default/a +released +\d", said)


def test_in_a_file_every_change_is_a_line_and_the_result_is_json(slow: Agent, tmp_path: Path, gate: Path) -> None:
    began = time.monotonic()
    slow.command("reclaim", "start", "--in", "9000")
    command = [sys.executable, "-m", "dra_agent", "reclaim", "status", "--watch", "-o", "json"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "lines").open("w") as err:
        watch = subprocess.Popen([*command, "--state-dir", str(slow.state_dir)], stdout=out, stderr=err)
    eventually(lambda: "0 of 2 claims released, waits" in (tmp_path / "lines").read_text())
    gate.touch()
    code = watch.wait(DEADLINE_S)
    took = time.monotonic() - began
    status = json.loads((tmp_path / "out").read_text())
    lines = (tmp_path / "lines").read_text().strip().splitlines()
    assert code == 0 and status["complete"] and status["phase"] == "notice"
    assert any(line.startswith("0 of 2 claims released, waits for default/") for line in lines), lines
    assert len(lines) == len(set(lines)) <= 4, "no line for each look"
    assert {(one["name"], one["state"]) for one in status["claims"]} == {("a", "released"), ("b", "released")}
    assert all(0 <= one["seconds"] <= took for one in status["claims"])


def test_what_is_not_done_when_the_host_is_gone_is_a_failure(start: Start, tmp_path: Path, claims: Path) -> None:
    agent = start("")
    agent.command("claim", "apply", "-f", str(claims))
    # The claims' specs cannot be taken away: the directory is not the agent's to change any more.
    blocked = next(path for path in (tmp_path / "cdi").iterdir() if "claim" in path.name)
    text = blocked.read_bytes()
    blocked.unlink()
    (blocked / "in the way").mkdir(parents=True)
    try:
        agent.command("reclaim", "start", "--in", "3")
        code, said = agent.command("reclaim", "status", "--watch")
        assert code == 1 and "its deadline was" in said and "prepared" in said
    finally:
        (blocked / "in the way").rmdir()
        blocked.rmdir()
        blocked.write_bytes(text)


def test_a_watch_ends_when_the_notice_is_taken_back(slow: Agent) -> None:
    slow.command("reclaim", "start", "--in", "9000")
    with Terminal("reclaim", "status", "--watch", "--state-dir", str(slow.state_dir)) as terminal:
        terminal.wait_for("0/2")
        slow.command("reclaim", "cancel")
        code, said = terminal.end()
    assert code == 0 and said.startswith("cancelled")
