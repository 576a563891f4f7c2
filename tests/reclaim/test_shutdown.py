"""A shutdown of a standalone host: claims are released before it, and allocated again in order after a cancellation."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventually import eventually
from reclaim.agent_process import Agent, Start, phases, wait_for_phases
from reclaim.fake_logind import Daemon, FakeLogind

SHUTDOWN_DELAY_S = 60.0
"""InhibitDelayMaxSec in seconds: longer than hooks take on any machine."""
SHORT_DELAY_S = 5.0
"""InhibitDelayMaxSec in seconds where a test waits for its end."""


@pytest.fixture
def logind(tmp_path: Path) -> Iterator[FakeLogind]:
    daemon = Daemon(tmp_path)
    logind = FakeLogind(daemon.address, delay=SHUTDOWN_DELAY_S)
    yield logind
    logind.stop()
    daemon.stop()


def wait_until(condition: Callable[[], object]) -> float:
    """Wait for the condition, and return the seconds that it took."""
    start_time = time.monotonic()
    eventually(condition)
    return time.monotonic() - start_time


def hook(folder: Path, body: str) -> str:
    script = folder / "hook"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o700)
    address = f"unix:path={folder}/bus"
    return f'[reclaim]\nlogind = "on"\ndbus_address = "{address}"\nhook = ["{script}"]\n'


def claim_names(agent: Agent) -> list[str]:
    """Return the names of the claims in the order of the queue."""
    code, text = agent.command("claim", "list", "-o", "json")
    assert code == 0, text
    return [view["name"] for view in json.loads(text)]


def test_a_shutdown_waits_for_claims_which_return_in_order(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    config = hook(tmp_path, f"sleep 1; echo $DRA_AGENT_CLAIM_NAME $DRA_AGENT_RECLAIM_SOURCE >> {tmp_path}/hooked")
    agent = start(config)
    wait_until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    before, order = phases(agent), claim_names(agent)
    assert [before[name][0] for name in order] == ["Prepared", "Prepared", "Pending"]

    logind.shut_down()
    duration = wait_until(lambda: not logind.locked())
    assert 1.0 <= duration < SHUTDOWN_DELAY_S, "as long as the hooks take, and within the delay of logind"
    assert sorted((tmp_path / "hooked").read_text().split()) == ["a", "b", "logind", "logind"]
    assert {phase for phase, _ in phases(agent).values()} == {"Pending"}
    assert claim_names(agent) == order
    assert not list((tmp_path / "cdi").glob("*.json"))

    logind.shut_down(False)
    wait_until(lambda: phases(agent) == before)
    assert claim_names(agent) == order
    wait_until(logind.locked)

    # The second shutdown continues: systemd stops the agent, and the next boot begins.
    logind.shut_down()
    wait_for_phases(agent, {"Pending"})
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0
    state = tmp_path / "s" / "reclaim.json"
    saved = json.loads(state.read_text())
    saved["state"]["boot"] = "an earlier boot"
    state.write_text(json.dumps(saved))
    logind.preparing = False
    restarted = start(config)
    wait_until(lambda: phases(restarted) == before)
    assert claim_names(restarted) == order and restarted.status()["phase"] == "none"


def test_a_shutdown_after_another_notice_is_not_delayed(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    agent = start(hook(tmp_path, "true"))
    wait_until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    assert agent.command("reclaim", "start", "--in", "60")[0] == 0
    wait_for_phases(agent, {"Pending"})
    agent.wait_for("every claim is released")
    assert logind.locked(), "no shutdown has been requested yet"
    logind.shut_down()
    assert wait_until(lambda: not logind.locked()) < SHUTDOWN_DELAY_S, "its claims were released before"


def test_a_hanging_hook_is_killed_within_the_shutdown_delay(
    start: Start, tmp_path: Path, claims: Path, logind: FakeLogind
) -> None:
    agent = start(hook(tmp_path, "test $DRA_AGENT_CLAIM_NAME = a && exec sleep 3600; exit 7") + "hook_seconds = 600\n")
    wait_until(logind.locked)
    agent.command("claim", "apply", "-f", str(claims))
    logind.delay = SHORT_DELAY_S
    logind.shut_down()
    assert wait_until(lambda: not logind.locked()) < SHUTDOWN_DELAY_S, "hooks have the delay of logind less 1 s"
    assert {phase for phase, _ in phases(agent).values()} == {"Pending"}
    reasons = {claim_["name"]: claim_["why"] for claim_ in agent.status()["claims"]}
    assert reasons == {"a": "its hook took too long and was killed", "b": "its hook ended with 7"}
