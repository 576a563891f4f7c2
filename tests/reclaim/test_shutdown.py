"""An orderly shutdown of a host without Kubernetes: claims are released meanwhile, and come back in their order."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventually import eventually
from reclaim.agent_process import Agent, Start, phases, settled
from reclaim.fake_logind import Daemon, FakeLogind

DELAY = 60.0
"""Seconds for which logind waits: longer than hooks that end take on any machine."""
SHORT_DELAY = 5.0
"""Seconds for which it waits where a test needs its patience to end."""


@pytest.fixture
def logind(tmp_path: Path) -> Iterator[FakeLogind]:
    daemon = Daemon(tmp_path)
    logind = FakeLogind(daemon.address, delay=DELAY)
    yield logind
    logind.stop()
    daemon.stop()


def until(condition: Callable[[], object]) -> float:
    """Wait for it; the seconds that it took."""
    began = time.monotonic()
    eventually(condition)
    return time.monotonic() - began


def hook(folder: Path, body: str) -> str:
    script = folder / "hook"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    address = f"unix:path={folder}/bus"
    return f'[reclaim]\nlogind = "on"\ndbus_address = "{address}"\nhook = ["{script}"]\n'


def in_order(agent: Agent) -> list[str]:
    """The names of the claims as the queue has them."""
    code, text = agent.command("claim", "list", "-o", "json")
    assert code == 0, text
    return [view["name"] for view in json.loads(text)]


def test_a_shutdown_waits_for_the_claims_and_they_come_back_in_their_order(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    config = hook(tmp_path, f"sleep 1; echo $DRA_AGENT_CLAIM_NAME $DRA_AGENT_RECLAIM_SOURCE >> {tmp_path}/hooked")
    agent = start(config)
    until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    before, order = phases(agent), in_order(agent)
    assert [before[name][0] for name in order] == ["Prepared", "Prepared", "Pending"]

    logind.shut_down()
    took = until(lambda: not logind.locked())
    assert 1.0 <= took < DELAY, "as long as the hooks take, and no longer than logind waits"
    assert sorted((tmp_path / "hooked").read_text().split()) == ["a", "b", "logind", "logind"]
    assert {phase for phase, _ in phases(agent).values()} == {"Pending"}
    assert in_order(agent) == order
    assert not list((tmp_path / "cdi").glob("*.json"))

    logind.shut_down(False)
    until(lambda: phases(agent) == before)
    assert in_order(agent) == order
    until(logind.locked)

    # Once more, and this time the host goes: systemd has the agent stop, and another boot begins.
    logind.shut_down()
    settled(agent, {"Pending"})
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0
    state = tmp_path / "s" / "reclaim.json"
    kept = json.loads(state.read_text())
    kept["state"]["boot"] = "an earlier boot"
    state.write_text(json.dumps(kept))
    logind.preparing = False
    again = start(config)
    until(lambda: phases(again) == before)
    assert in_order(again) == order and again.status()["phase"] == "none"


def test_a_shutdown_after_another_notice_waits_for_nothing(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    agent = start(hook(tmp_path, "true"))
    until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    assert agent.command("reclaim", "start", "--in", "60")[0] == 0
    settled(agent, {"Pending"})
    agent.wait_for("every claim is released")
    assert logind.locked(), "nobody has asked the host to shut down yet"
    logind.shut_down()
    assert until(lambda: not logind.locked()) < DELAY, "its claims were released before it came"


def test_a_program_that_does_not_end_costs_no_more_than_the_host_has(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    agent = start(hook(tmp_path, "test $DRA_AGENT_CLAIM_NAME = a && exec sleep 3600; exit 7") + "hook_seconds = 600\n")
    until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    logind.delay = SHORT_DELAY
    logind.shut_down()
    assert until(lambda: not logind.locked()) < DELAY, "the rest of the host's time is theirs, less a second"
    assert {phase for phase, _ in phases(agent).values()} == {"Pending"}
    why = {one["name"]: one["why"] for one in agent.status()["claims"]}
    assert why == {"a": "its hook took too long and was killed", "b": "its hook ended with 7"}
