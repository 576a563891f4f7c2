"""Commands show no held device as free while its agent has ended, hangs, or may not be asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import preloaded
from eventually import DEADLINE_S, eventually

from .conftest import AgentProcess, Start
from .test_page import Ui, ui
from .training_claim import CLAIM

Run = Callable[..., subprocess.CompletedProcess[str]]
GPU = "gpu-0000-00-04-0"
SHORT_TIMEOUT = "import dra_agent.reclaim.control as control; control.REQUEST_TIMEOUT_S = 0.5"
"""For agents that never respond; with one that responds, no test depends on it."""
HOST = ("--simulate", "vm-1gpu")

__all__ = ["ui"]


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Run:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    variables |= {"DRA_AGENT_STATE_DIR": str(state), "COLUMNS": "120", "NO_COLOR": "1"}

    def run(*arguments: str, patch: str = "") -> subprocess.CompletedProcess[str]:
        result = preloaded.run(arguments, env=variables, cwd=tmp_path, patch=patch)
        assert "Traceback" not in result.stderr
        return result

    return run


@pytest.fixture
def agent(start: Start, tmp_path: Path, cli: Run) -> AgentProcess:
    """An agent with one GPU, which a claim holds."""
    (tmp_path / "claim.yaml").write_text(CLAIM)
    agent = start().ready()
    applied = cli("claim", "apply", "-f", "claim.yaml")
    assert applied.returncode == 0, applied.stderr
    return agent


def shows_the_holder(cli: Run, reason: str, *, patch: str = "") -> None:
    """Check what each command shows of the host if the ledger can be read."""
    listed = cli("devices", *HOST, "-o", "json", patch=patch)
    document = json.loads(listed.stdout)
    assert {device["name"]: device["held_by"] for device in document["devices"]}[GPU] == ["team/training"]
    assert any(reason in note for note in document["notes"]), document["notes"]
    assert listed.returncode == 0 and reason in listed.stderr
    one = json.loads(cli("devices", GPU, *HOST, "-o", "json", patch=patch).stdout)
    assert one["held_by"] == ["team/training"] and one["notes"] == document["notes"]
    assert "held by team/training" in cli("devices", *HOST, patch=patch).stdout
    tree = cli("topology", *HOST, patch=patch)
    assert "held by team/training" in tree.stdout and "free" not in tree.stdout and reason in tree.stderr
    picture = cli("topology", *HOST, "--svg", "-", patch=patch).stdout
    assert "team/training" in picture and ">free<" not in picture


def test_a_dead_agents_claims_are_those_of_its_ledger(agent: AgentProcess, cli: Run) -> None:
    agent.end(signal.SIGKILL)
    shows_the_holder(cli, "no agent is running here")


def test_a_hung_agents_claims_are_those_of_its_ledger(agent: AgentProcess, cli: Run) -> None:
    os.kill(agent.process.pid, signal.SIGSTOP)
    shows_the_holder(cli, "the agent did not respond within 0.5 s", patch=SHORT_TIMEOUT)


def test_no_device_is_free_if_neither_agent_nor_ledger_can_be_read(agent: AgentProcess, cli: Run, state: Path) -> None:
    agent.end(signal.SIGKILL)
    shutil.rmtree(state / "ledger")
    (state / "ledger").write_text("not a directory")
    listed = cli("devices", *HOST, "-o", "json")
    document = json.loads(listed.stdout)
    assert [device["held_by"] for device in document["devices"]] == [None] * len(document["devices"])
    assert document["notes"] and listed.returncode == 1
    table = cli("devices", *HOST)
    assert table.returncode == 1 and "claims unknown" in table.stdout and "not known" in table.stderr
    assert " ok" not in table.stdout
    tree = cli("topology", *HOST)
    assert tree.returncode == 1 and "free" not in tree.stdout and "not known" in tree.stderr


def test_the_page_shows_the_ledger_of_a_dead_agent(agent: AgentProcess, ui: Callable[..., Ui]) -> None:
    agent.end(signal.SIGKILL)
    page = ui(*HOST)
    shown = page.shows("No agent responds on this host")
    assert "team/training" in shown and "those of the ledger" in shown and "no agent is running here" in shown
    assert ">free<" not in page.get("topology.svg")


def test_watched_devices_name_the_reason_when_the_agent_ends(agent: AgentProcess, state: Path, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DRA_AGENT_", "KUBE"))}
    output, errors = tmp_path / "output", tmp_path / "errors"
    with output.open("w") as out, errors.open("w") as err:
        watching = preloaded.Command(
            ["devices", "--state-dir", str(state), *HOST, "--watch", "-o", "json"],
            stdout=out,
            stderr=err,
            env=variables,
        )
    try:
        eventually(lambda: "team/training" in output.read_text(), errors.read_text)
        assert "not respond" not in errors.read_text()
        agent.end(signal.SIGKILL)
        eventually(lambda: "no agent is running here" in errors.read_text(), errors.read_text)
        eventually(lambda: json.loads(output.read_text().splitlines()[-1])["notes"], output.read_text)
    finally:
        watching.kill()
        watching.wait(DEADLINE_S)
    for line in output.read_text().splitlines():
        if (device := json.loads(line))["name"] == GPU:
            assert device["held_by"] == ["team/training"]


def test_top_names_why_an_agent_is_not_reached(agent: AgentProcess, cli: Run) -> None:
    os.kill(agent.process.pid, signal.SIGSTOP)
    patch = f"{SHORT_TIMEOUT}; import dra_agent.telemetry.control as top; top.RESPONSE_TIMEOUT_S = 0.5"
    result = cli("top", "--once", patch=patch)
    assert result.returncode == 1 and "did not respond within 0.5 s" in result.stderr and not result.stdout


def findings(result: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    listed: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    return listed


def test_doctor_reports_an_agent_that_does_not_respond(agent: AgentProcess, cli: Run) -> None:
    os.kill(agent.process.pid, signal.SIGSTOP)
    result = cli("doctor", *HOST, "-o", "json", patch=SHORT_TIMEOUT)
    assert result.returncode == 1
    (found,) = [one for one in findings(result) if "did not respond within" in one["what"]]
    assert found["severity"] == "problem" and "restart" in found["todo"]


def test_doctor_keeps_the_specs_of_claims_that_it_cannot_know(
    agent: AgentProcess, cli: Run, state: Path, tmp_path: Path
) -> None:
    cdi = str(tmp_path / "cdi")
    agent.end(signal.SIGKILL)
    of_another = tmp_path / "other"
    of_another.mkdir(mode=0o700)
    result = cli("doctor", "--state-dir", str(of_another), "--cdi-dir", cdi, "-o", "json")
    of_claims = [one for one in findings(result) if "is of claim" in one["what"] or "of claims" in one["what"]]
    assert [one["severity"] for one in of_claims] == ["warning"] and "not known" in of_claims[0]["what"]
    assert not any("remove it" in one.get("todo", "") for one in findings(result) if cdi in one.get("where", ""))
    result = cli("doctor", "--cdi-dir", cdi, "-o", "json")
    assert not any("holds nothing" in one["what"] for one in findings(result))
