"""Agents with different state directories on one host: what is refused, and how the owner is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dra_simulate
import preloaded
from agent.conftest import AgentProcess
from dra_agent.agent.host_ownership import ID_FILE, state_id
from dra_agent.host import Host


@pytest.fixture
def start_real(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Start agents on one sysfs tree that they do not treat as a simulated host."""
    agents: list[AgentProcess] = []

    def start(state: str, *flags: str, profile: str = "cpu-only") -> AgentProcess:
        root = tmp_path / "host"
        host = Host(root / "sys", root / "dev") if root.exists() else dra_simulate.build(profile, root)
        log = tmp_path / f"log-{len(agents)}"
        command = ["run", "--standalone", "--state-dir", str(tmp_path / state)]
        command += ["--sysfs-root", str(host.sysfs), "--dev-root", str(host.dev), "--node-name", "node-a"]
        command += ["--cdi-dir", str(tmp_path / "cdi"), "--run-dir", str(tmp_path / "run"), *flags]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        with log.open("w") as file:
            process = preloaded.Command(command, stdout=file, stderr=file, env=variables)
        agents.append(AgentProcess(process, log))
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.process.wait(30)


def test_a_second_agent_for_the_same_devices_is_refused(
    start_real: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    first = start_real("one").ready()
    second = start_real("two")
    assert second.process.wait(60) == 1
    log = second.log_text()
    assert str(tmp_path / "one") in log and f"pid {first.process.pid}" in log
    assert "--state-dir" not in log
    other_driver = start_real("three", "--driver-name", "other.example.com").ready()
    assert other_driver.end(signal.SIGTERM) == 0
    first.process.kill()
    first.process.wait(30)
    start_real("two").ready()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run", tmp_path / "run" / "hosts")} == {0o755}
    drivers = list((tmp_path / "run").glob("hosts/*/drivers/*"))
    # A user who can open such a file can lock it, and prevent the agent from starting.
    assert drivers and {path.stat().st_mode & 0o7777 for path in drivers} == {0o600}


def test_doctor_names_both_agents_of_different_drivers(start_real: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """Each agent publishes the device, and a second claim for it is refused at prepare."""
    excluding = tmp_path / "excluding.toml"
    excluding.write_text("[inventory]\nexclude = ['true']\n")

    def doctor(state: str) -> tuple[int, list[dict[str, str]]]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        result = preloaded.run(["doctor", "--state-dir", str(tmp_path / state), "-o", "json"], env=variables)
        findings = json.loads(result.stdout)["findings"]
        return result.returncode, [finding for finding in findings if "two agents of this host" in finding["what"]]

    first = start_real("one", "--driver-name", "gpu.example.com", profile="mi300x").ready()
    start_real("apart", "--driver-name", "nothing.example.com", "--config", str(excluding), profile="mi300x").ready()
    assert doctor("one")[1] == []
    second = start_real("two", "--driver-name", "nvidia.example.com", profile="mi300x").ready()
    for state, other, agent in (("one", "two", second), ("two", "one", first)):
        code, (finding,) = doctor(state)
        assert (code, finding["severity"]) == (1, "problem")
        assert f"state directory {tmp_path / state})" in finding["where"]
        assert f"state directory {tmp_path / other}, pid {agent.process.pid})" in finding["where"]
        assert "gpu-0000-" in finding["what"]
    assert second.end(signal.SIGTERM) == 0
    assert doctor("one")[1] == []


def test_a_second_agent_in_one_state_directory_is_refused(
    start_real: Callable[..., AgentProcess],
) -> None:
    first = start_real("one").ready()
    second = start_real("one")
    assert second.process.wait(60) == 1
    assert f"pid {first.process.pid}" in second.log_text() and "--state-dir" not in second.log_text()


def test_the_id_of_a_state_directory_is_stable_and_unique(tmp_path: Path) -> None:
    """Device number and inode of a removed directory are reused for the next one; its id is not."""
    state = tmp_path / "state"
    state.mkdir()
    first = state_id(state)
    assert (state_id(state), (state / ID_FILE).read_text().strip()) == (first, first)
    assert [path.name for path in state.iterdir()] == [ID_FILE], "only the id file exists"
    state.rename(tmp_path / "moved")
    state.mkdir()
    assert state_id(tmp_path / "moved") == first != state_id(state)


def test_the_id_survives_a_restart_and_is_not_logged(start_real: Callable[..., AgentProcess], tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        agent = start_real("one").ready()
        assert agent.end(signal.SIGTERM) == 0
        assert "no id" not in agent.log_text()
        ids.append((tmp_path / "one" / ID_FILE).read_text())
    assert ids[0] == ids[1]
