"""Sources of reclaim notices that cannot be reached: the doctor and `reclaim status` say so."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import preloaded
from agent.conftest import Start, start, state
from dra_agent.doctor import CheckContext, Severity
from dra_agent.reclaim.status import source_note
from eventually import eventually

from .conftest import Findings

__all__ = ["start", "state"]


def source(name: str, up: bool | None) -> dict[str, Any]:
    return {"source": name, "up": up, "why": "" if up else "no route"}


@pytest.mark.parametrize(
    ("sources", "is_blind", "part"),
    [
        ([], False, "no source of notices is watched"),
        ([source("aws", False)], True, "no source of notices is reachable"),
        ([source("aws", False), source("logind", False)], True, "aws (no route), logind (no route)"),
        ([source("aws", False), source("logind", True)], False, "1 of 2 sources"),
    ],
)
def test_what_is_missing_from_sources_is_named(sources: list[dict[str, Any]], is_blind: bool, part: str) -> None:
    note = source_note(sources)
    assert note is not None and note.is_blind == is_blind and part in str(note)


def test_sources_that_are_polled_lack_nothing() -> None:
    assert source_note([source("aws", True), source("logind", None)]) is None


@pytest.mark.parametrize("sees_none", [True, False])
def test_no_reachable_source_is_a_problem(healthy_host: CheckContext, findings: Findings, sees_none: bool) -> None:
    healthy_host.notices_missing, healthy_host.sees_no_notice = "not reached", sees_none
    (finding,) = findings(healthy_host)
    assert finding.severity is (Severity.PROBLEM if sees_none else Severity.WARNING)
    assert finding.message == "not reached"


@pytest.fixture
def cli(state: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    return lambda *words: preloaded.run(words, env={**variables, "DRA_AGENT_STATE_DIR": str(state)})


def test_an_unreachable_cloud_is_reported_by_commands(
    start: Start, cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    config = tmp_path / "agent.toml"
    config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "http://127.0.0.1:{port}"\n')
    agent = start("--config", str(config)).ready()

    def status() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(cli("reclaim", "status", "-o", "json").stdout)
        return document

    eventually(lambda: all(one["up"] is False for one in status()["sources"]), agent.log_text)
    assert any("no source of notices is reachable" in note for note in status()["notes"])
    assert "warning: no source of notices is reachable" in cli("reclaim", "status").stderr
    report = cli("doctor", "-o", "json")
    found = [one for one in json.loads(report.stdout)["findings"] if one["check"] == "reclaim"]
    assert report.returncode == 1 and [one["severity"] for one in found] == ["problem"]


def test_a_host_without_sources_is_reported(start: Start, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    start().ready()
    assert "no source of notices is watched" in cli("reclaim", "status").stderr
    assert json.loads(cli("reclaim", "status", "-o", "json").stdout)["notes"]
