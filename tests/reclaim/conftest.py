"""Metadata services of every cloud, a D-Bus daemon, and real agents."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventually import DEADLINE_S
from reclaim.agent_process import CLASS, Agent, Start, claim
from reclaim.metadata.aws import FakeAws
from reclaim.metadata.azure import FakeAzure
from reclaim.metadata.gcp import FakeGcp

LONG_S = 10 * DEADLINE_S
"""Longer than any test."""


@pytest.fixture(autouse=True)
def relaxed_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend timeouts for a slow machine; a test of such a timeout sets it itself."""
    limits = (
        "service.SAVE_TIMEOUT_S",
        "service.OPERATOR_SAVE_TIMEOUT_S",
        "signals.aws.REQUEST_TIMEOUT_S",
        "signals.azure.REQUEST_TIMEOUT_S",
        "signals.azure.FIRST_REQUEST_TIMEOUT_S",
    )
    for limit in (
        *limits,
        "signals.dbus.REQUEST_TIMEOUT_S",
        "signals.gcp.FIRST_REQUEST_TIMEOUT_S",
        "signals.gcp._RESPONSE_MARGIN_S",
    ):
        monkeypatch.setattr(f"dra_agent.reclaim.{limit}", LONG_S)
    # A request that waits for a change is sent once, however long the test takes.
    monkeypatch.setattr("dra_agent.reclaim.signals.gcp.LONG_POLL_S", int(LONG_S))


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    service = FakeAws()
    yield service
    service.close()


@pytest.fixture
def gcp() -> Iterator[FakeGcp]:
    service = FakeGcp()
    yield service
    service.close()


@pytest.fixture
def azure() -> Iterator[FakeAzure]:
    service = FakeAzure()
    yield service
    service.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[Agent] = []

    def start(config: str, *flags: str, patch: str = "") -> Agent:
        agents.append(Agent(tmp_path, config, *flags, patch=patch))
        agents[-1].wait_for("info ready")
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop(signal.SIGKILL)


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    file = tmp_path / "claims.json"
    objects = [CLASS, *(claim(name) for name in ("b", "a", "c"))]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return file
