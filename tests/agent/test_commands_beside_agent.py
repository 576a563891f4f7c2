"""Commands beside a running agent show its host, with its configuration, and mix no other host with its claims."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventually import eventually

from .conftest import AgentProcess, Start

Run = Callable[..., subprocess.CompletedProcess[str]]

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: any-gpu}
spec:
  selectors:
  - cel: {expression: 'device.attributes["dra-agent.internal"].type == "gpu"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: training, namespace: team}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {deviceClassName: any-gpu}
"""


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Run:
    (tmp_path / "claim.yaml").write_text(CLAIM)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables |= {"DRA_AGENT_STATE_DIR": str(state), "COLUMNS": "80", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "dra_agent", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables, cwd=tmp_path)
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def agent(start: Start, tmp_path: Path, cli: Run) -> AgentProcess:
    """An agent on a DGX without one of its GPUs, with a claim for another one."""
    config = tmp_path / "agent.toml"
    config.write_text(
        '[inventory]\nexclude = [\'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == '
        '"0000:43:00.0"\']\n'
    )
    agent = start("--simulate", "dgx-h100", "--config", str(config)).ready()
    applied = cli("claim", "apply", "-f", "claim.yaml")
    assert applied.returncode == 0, applied.stderr
    return agent


def names(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    assert done.returncode == 0, done.stderr
    return {device["name"]: device["held_by"] for device in json.loads(done.stdout)["devices"]}


def test_devices_are_those_that_the_agent_publishes(agent: AgentProcess, cli: Run) -> None:
    for arguments in ((), ("--simulate", "dgx-h100")):
        shown = names(cli("devices", *arguments, "-o", "json"))
        assert "gpu-0000-43-00-0" not in shown
        assert shown["gpu-0000-1b-00-0"] == ["team/training"]
    slices = json.loads(cli("slices", "-o", "json").stdout)["items"]
    published = {device["name"] for one in slices for device in one["spec"].get("devices", ())}
    assert "gpu-0000-1b-00-0" in published and "gpu-0000-43-00-0" not in published
    assert {one["spec"]["nodeName"] for one in slices} == {"node-a"}
    usage = json.loads(cli("claims", "--usage", "-o", "json").stdout)
    assert [row["note"] for row in usage] != ["the device is not on this host"]


def test_another_host_has_none_of_the_agents_claims(agent: AgentProcess, cli: Run) -> None:
    assert not any(names(cli("devices", "--simulate", "mixed", "-o", "json")).values())
    table = cli("devices", "--simulate", "mixed")
    assert "held by" not in table.stdout
    assert "simulated mixed: not the agent's; its claims are not shown" in table.stderr
    assert "held by" not in cli("topology", "--simulate", "mixed").stdout


def test_a_topology_says_free_only_of_what_can_be_claimed(agent: AgentProcess, cli: Run) -> None:
    lines = cli("topology").stdout.splitlines()
    states = {line.split()[-1]: line for line in lines}
    assert any("0000:1b:00.0" in line and line.endswith("held by team/training") for line in lines)
    excluded = next(line for line in lines if "0000:43:00.0" in line)
    assert not excluded.endswith("free"), states
    assert next(line for line in lines if "0000:52:00.0" in line).endswith("free")
    picture = cli("topology", "--svg", "-")
    assert picture.returncode == 0 and picture.stdout.startswith("<?xml")
    assert picture.stdout.count(">free<") == sum(line.endswith("free") for line in lines)


def test_an_agent_that_was_killed_is_a_problem_for_the_doctor(agent: AgentProcess, cli: Run, state: Path) -> None:
    findings = cli("doctor", "-o", "json")
    assert not [one for one in json.loads(findings.stdout)["findings"] if "no agent runs" in one["what"]]
    assert agent.end(signal.SIGKILL) != 0
    done = cli("doctor", "-o", "json")
    assert done.returncode == 1
    (found,) = [one for one in json.loads(done.stdout)["findings"] if "no agent runs" in one["what"]]
    assert (found["severity"], found["where"]) == ("problem", str(state))
    assert "journalctl -u dra-agent" in found["todo"]


def test_claims_say_since_when_they_are_prepared(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    waiting = CLAIM.replace("name: training", "name: later").replace(
        "deviceClassName: any-gpu", "deviceClassName: any-gpu, count: 7"
    )
    (tmp_path / "later.yaml").write_text(waiting.partition("---\n")[2])
    cli("claim", "apply", "-f", "later.yaml")
    created = json.loads(cli("claim", "get", "later", "-n", "team", "-o", "json").stdout)
    assert created["phase"] == "Pending" and created["prepared"] == ""
    cli("claim", "delete", "training", "-n", "team")
    (tmp_path / "later.yaml").write_text(waiting.partition("---\n")[2].replace("count: 7", "count: 1"))
    cli("claim", "delete", "later", "-n", "team")
    cli("claim", "apply", "-f", "later.yaml")
    (row,) = json.loads(cli("claims", "-o", "json").stdout)
    claim = json.loads(cli("claim", "get", "later", "-n", "team", "-o", "json").stdout)
    assert row["since"] == claim["prepared"] >= claim["created"]


def test_a_kubeconfig_is_refused_where_it_would_be_ignored(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    done = cli("claims", "--kubeconfig", str(tmp_path / "kubeconfig"))
    assert done.returncode == 2
    assert "--kubeconfig: the agent of this host runs without Kubernetes" in done.stderr


def test_names_of_claims_stand_for_their_uids(agent: AgentProcess, cli: Run) -> None:
    by_uid = cli("claim", "get", "training", "-n", "team", "-o", "json")
    uid = json.loads(by_uid.stdout)["uid"]
    cdi = str(Path(agent.log).parent / "cdi")
    expected = json.loads(cli("cdi", "show", uid, "-o", "json", "--cdi-dir", cdi).stdout)
    for name in ("training", "team/training"):
        shown = cli("cdi", "show", name, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout) == expected
    missing = cli("cdi", "show", "team/nope")
    assert missing.returncode == 1 and "no claim of this name or uid has a CDI spec in" in missing.stderr


def test_a_claim_of_this_host_is_explained_by_its_name(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    done = cli("explain", "claim", "training", "-n", "team")
    assert done.returncode == 0
    assert done.stdout.startswith("claim team/training: prepared: gpu-0000-1b-00-0")
    (tmp_path / "many.yaml").write_text(
        CLAIM.partition("---\n")[2].replace("training", "many").replace("any-gpu}", "any-gpu, count: 8}")
    )
    cli("claim", "apply", "-f", "many.yaml")
    done = cli("explain", "claim", "many", "-n", "team")
    assert done.returncode == 1
    assert "does not fit" in done.stdout and "gpu-0000-52-00-0" in done.stdout
    done = cli("explain", "claim", "nope", "-n", "team")
    assert done.returncode == 1 and "there is no claim nope in namespace team" in done.stderr
    done = cli("explain", "pod", "nope")
    assert done.returncode == 2 and "this host's agent runs without Kubernetes" in done.stderr


def test_a_second_start_of_a_reclaim_changes_the_reason_on_claims(agent: AgentProcess, cli: Run) -> None:
    def message() -> str:
        (listed,) = json.loads(cli("claim", "list", "-o", "json").stdout)
        return str(listed["message"])

    # A notice is answered before the claims are given up for it.
    cli("reclaim", "start", "--why", "first reason")
    eventually(lambda: "first reason" in message(), agent.said)
    cli("reclaim", "start", "--why", "second reason")
    eventually(lambda: "second reason" in message(), agent.said)
    assert "first reason" not in message()


def test_specs_that_cannot_be_written_make_apply_the_doctor_and_readyz_fail(
    start: Start, cli: Run, state: Path
) -> None:
    agent = start("--cdi-dir", "/proc/x", "--metrics-address", "127.0.0.1:0").ready()
    status, text = agent.get("/readyz")
    assert status == 503 and "CDI specs cannot be written" in text and "/proc/x" in text
    done = cli("claim", "apply", "-f", "claim.yaml")
    assert done.returncode == 1
    assert "resourceclaim/training created: allocated: " in done.stdout and "/proc/x" in done.stdout
    doctor = cli("doctor", "-o", "json")
    assert doctor.returncode == 1
    assert [one["severity"] for one in json.loads(doctor.stdout)["findings"] if one.get("where") == "/proc/x"].count(
        "problem"
    )
