"""Commands use the host and the configuration of a running agent, and never show its claims for another host."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import preloaded
from eventually import eventually

from .conftest import AgentProcess, Start
from .training_claim import CLAIM

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Run:
    (tmp_path / "claim.yaml").write_text(CLAIM)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables |= {"DRA_AGENT_STATE_DIR": str(state), "COLUMNS": "80", "NO_COLOR": "1"}
        result = preloaded.run(arguments, env=variables, cwd=tmp_path)
        assert "Traceback" not in result.stderr
        return result

    return run


@pytest.fixture
def agent(start: Start, tmp_path: Path, cli: Run) -> AgentProcess:
    """An agent on a server with eight B200, with one GPU excluded, and a claim for another GPU."""
    config = tmp_path / "agent.toml"
    config.write_text(
        '[inventory]\nexclude = [\'device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == '
        '"0000:29:00.0"\']\n'
    )
    agent = start("--simulate", "b200", "--config", str(config)).ready()
    applied = cli("claim", "apply", "-f", "claim.yaml")
    assert applied.returncode == 0, applied.stderr
    return agent


def names(result: subprocess.CompletedProcess[str]) -> dict[str, list[str] | None]:
    assert result.returncode == 0, result.stderr
    return {device["name"]: device["held_by"] for device in json.loads(result.stdout)["devices"]}


def test_devices_are_those_that_the_agent_publishes(agent: AgentProcess, cli: Run) -> None:
    for arguments in ((), ("--simulate", "b200")):
        devices = names(cli("devices", *arguments, "-o", "json"))
        assert "gpu-0000-29-00-0" not in devices
        assert devices["gpu-0000-11-00-0"] == ["team/training"]
    slices = json.loads(cli("slices", "-o", "json").stdout)["items"]
    published = {device["name"] for slice_ in slices for device in slice_["spec"].get("devices", ())}
    assert "gpu-0000-11-00-0" in published and "gpu-0000-29-00-0" not in published
    assert {slice_["spec"]["nodeName"] for slice_ in slices} == {"node-a"}
    usage = json.loads(cli("claims", "--usage", "-o", "json").stdout)
    assert [row["note"] for row in usage] != ["the device is not on this host"]
    heading = cli("claims", "--usage").stdout.splitlines()[0]
    assert heading.split() == ["DEVICE", "CLAIM", "SHARE", "LIMIT", "USED", "COUNTED", "BY"]


def test_another_host_shows_none_of_the_agents_claims(agent: AgentProcess, cli: Run) -> None:
    assert not any(names(cli("devices", "--simulate", "mixed", "-o", "json")).values())
    table = cli("devices", "--simulate", "mixed")
    assert "held by" not in table.stdout
    assert "simulated mixed: not the agent's; its claims are not shown" in table.stderr
    assert "held by" not in cli("topology", "--simulate", "mixed").stdout


def test_a_topology_shows_only_allocatable_devices_as_free(agent: AgentProcess, cli: Run) -> None:
    lines = cli("topology").stdout.splitlines()
    states = {line.split()[-1]: line for line in lines}
    assert any("0000:11:00.0" in line and line.endswith("held by team/training") for line in lines)
    excluded = next(line for line in lines if "0000:29:00.0" in line)
    assert not excluded.endswith("free"), states
    assert next(line for line in lines if "0000:41:00.0" in line).endswith("free")
    svg = cli("topology", "--svg", "-")
    assert svg.returncode == 0 and svg.stdout.startswith("<?xml")
    assert svg.stdout.count(">free<") == sum(line.endswith("free") for line in lines)


@pytest.fixture
def broken_socket(state: Path) -> Iterator[Callable[[], None]]:
    """Put a listener in place of the agent's socket for claims that closes each connection."""
    with socket.socket(socket.AF_UNIX) as listener:

        def close_connections() -> None:
            with suppress(OSError):  # the end of the test
                while True:
                    listener.accept()[0].close()

        closing = threading.Thread(target=close_connections)

        def replace() -> None:
            (state / "agent.sock").unlink()
            listener.bind(str(state / "agent.sock"))
            listener.listen()
            closing.start()

        yield replace
        listener.shutdown(socket.SHUT_RDWR)
        closing.join()


def test_claims_are_those_of_the_ledger_where_the_agent_does_not_list_them(
    agent: AgentProcess, cli: Run, broken_socket: Callable[[], None]
) -> None:
    broken_socket()
    listed = cli("devices", "-o", "json")
    assert names(listed)["gpu-0000-11-00-0"] == ["team/training"]
    assert "the claims that hold devices are those of the ledger: " in listed.stderr and "agent.sock" in listed.stderr
    assert "held by" in cli("devices", "gpu-0000-11-00-0").stdout
    started = cli("reclaim", "start", "--in", "1h", "--yes")
    assert started.returncode == 0, started.stderr
    assert "the claims that this releases are not known: " in started.stderr
    assert "no claim holds" not in started.stderr


def test_doctor_reports_a_killed_agent_as_a_problem(agent: AgentProcess, cli: Run, state: Path) -> None:
    findings = cli("doctor", "-o", "json")
    assert not [finding for finding in json.loads(findings.stdout)["findings"] if "no agent runs" in finding["what"]]
    assert agent.end(signal.SIGKILL) != 0
    result = cli("doctor", "-o", "json")
    assert result.returncode == 1
    (problem,) = [finding for finding in json.loads(result.stdout)["findings"] if "no agent runs" in finding["what"]]
    assert (problem["severity"], problem["where"]) == ("problem", str(state))
    assert "journalctl -u dra-agent" in problem["todo"]


def test_claims_show_since_when_they_are_prepared(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    manifest = CLAIM.replace("name: training", "name: later").replace(
        "deviceClassName: any-gpu", "deviceClassName: any-gpu, count: 7"
    )
    (tmp_path / "later.yaml").write_text(manifest.partition("---\n")[2])
    cli("claim", "apply", "-f", "later.yaml")
    created = json.loads(cli("claim", "get", "later", "-n", "team", "-o", "json").stdout)
    assert created["phase"] == "Pending" and created["prepared"] == ""
    cli("claim", "delete", "training", "-n", "team")
    (tmp_path / "later.yaml").write_text(manifest.partition("---\n")[2].replace("count: 7", "count: 1"))
    cli("claim", "delete", "later", "-n", "team")
    cli("claim", "apply", "-f", "later.yaml")
    (row,) = json.loads(cli("claims", "-o", "json").stdout)
    claim = json.loads(cli("claim", "get", "later", "-n", "team", "-o", "json").stdout)
    assert row["since"] == claim["prepared"] >= claim["created"]


def test_a_kubeconfig_is_refused_where_it_would_be_ignored(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    result = cli("claims", "--kubeconfig", str(tmp_path / "kubeconfig"))
    assert result.returncode == 2
    assert "--kubeconfig: the agent of this host runs without Kubernetes" in result.stderr


def test_commands_accept_claim_names_instead_of_uids(agent: AgentProcess, cli: Run) -> None:
    by_uid = cli("claim", "get", "training", "-n", "team", "-o", "json")
    uid = json.loads(by_uid.stdout)["uid"]
    cdi = str(Path(agent.log).parent / "cdi")
    expected = json.loads(cli("cdi", "show", uid, "-o", "json", "--cdi-dir", cdi).stdout)
    for name in ("training", "team/training"):
        by_name = cli("cdi", "show", name, "-o", "json")
        assert by_name.returncode == 0, by_name.stderr
        assert json.loads(by_name.stdout) == expected
    missing = cli("cdi", "show", "team/nope")
    assert missing.returncode == 1 and "no claim of this name or uid has a CDI spec in" in missing.stderr


def test_a_claim_of_this_host_is_explained_by_its_name(agent: AgentProcess, cli: Run, tmp_path: Path) -> None:
    result = cli("explain", "claim", "training", "-n", "team")
    assert result.returncode == 0
    assert result.stdout.startswith("claim team/training: prepared: gpu-0000-11-00-0")
    (tmp_path / "many.yaml").write_text(
        CLAIM.partition("---\n")[2].replace("training", "many").replace("any-gpu}", "any-gpu, count: 8}")
    )
    cli("claim", "apply", "-f", "many.yaml")
    result = cli("explain", "claim", "many", "-n", "team")
    assert result.returncode == 1
    assert "does not fit" in result.stdout and "gpu-0000-41-00-0" in result.stdout
    # The other GPU is not published. Both commands have the reason, and none for a claim that waits for no device.
    for query in (("claim", "many", "-n", "team"), ("-f", "many.yaml")):
        text = cli("explain", *query).stdout
        listed = text.partition("node node-a does not publish:\n")[2].splitlines()[1]
        assert listed.split()[:2] == ["gpu-0000-29-00-0", "rule"] and "inventory.exclude[0]" in listed
        answer = json.loads(cli("explain", *query, "-o", "json").stdout)
        (excluded,) = answer["excluded"]
        assert (excluded["name"], excluded["code"]) == ("gpu-0000-29-00-0", "rule")
    (tmp_path / "one.yaml").write_text(CLAIM.partition("---\n")[2].replace("training", "one"))
    assert json.loads(cli("explain", "-f", "one.yaml", "-o", "json").stdout)["excluded"] == []
    assert "does not publish" not in cli("explain", "-f", "one.yaml").stdout
    result = cli("explain", "claim", "nope", "-n", "team")
    assert result.returncode == 1 and "there is no claim nope in namespace team" in result.stderr
    result = cli("explain", "pod", "nope")
    assert result.returncode == 2 and "this host's agent runs without Kubernetes" in result.stderr


def test_a_second_reclaim_start_changes_the_reason_on_claims(agent: AgentProcess, cli: Run) -> None:
    def message() -> str:
        (claim,) = json.loads(cli("claim", "list", "-o", "json").stdout)
        return str(claim["message"])

    # The command returns before the claims are released for the notice.
    cli("reclaim", "start", "--why", "first reason")
    eventually(lambda: "first reason" in message(), agent.log_text)
    cli("reclaim", "start", "--why", "second reason")
    eventually(lambda: "second reason" in message(), agent.log_text)
    assert "first reason" not in message()


def test_unwritable_specs_fail_apply_doctor_and_readyz(start: Start, cli: Run, state: Path) -> None:
    agent = start("--cdi-dir", "/proc/x", "--metrics-address", "127.0.0.1:0").ready()
    status, text = agent.get("/readyz")
    assert status == 503 and "CDI specs cannot be written" in text and "/proc/x" in text
    result = cli("claim", "apply", "-f", "claim.yaml")
    assert result.returncode == 1
    assert "resourceclaim/training created: allocated: " in result.stdout and "/proc/x" in result.stdout
    report = cli("doctor", "-o", "json")
    assert report.returncode == 1
    assert [
        finding["severity"] for finding in json.loads(report.stdout)["findings"] if finding.get("where") == "/proc/x"
    ].count("problem")
