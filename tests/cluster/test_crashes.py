"""The agent is killed with SIGKILL while pods start and stop, at random points of prepare and unprepare."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.kube.agent import Agent
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request
from cluster.test_prepare import assert_single_holder

StartAgent = Callable[..., Agent]
HARDWARE = "dgx-h100"
PODS = 8
ROUNDS = 2
"""Each round kills the agent once per created pod and once per deleted pod: 32 in total."""
TRIGGERS = ["while", "ledger", "ledger", "cdi", "cdi", "log"]
KUBELET_CALL_TIMEOUT_S = 120.0
"""Seconds until the kubelet calls: it retries a failed call after 60 to 90."""
SEED = 20261121


class Killer:
    """Kills the agent at random points of its work, and starts it again.

    A point is a delay after a visible event: a request in the log, a record in the ledger, a CDI file that was created
    or removed. A request takes a few milliseconds, and so does the delay.
    """

    def __init__(self, agent: Agent, random_source: random.Random) -> None:
        self.agent = agent
        self.random_source = random_source
        self.points: list[str] = []

    def kill(self, begin: Callable[[], object]) -> None:
        """Start an action that makes the kubelet call the agent, and kill the agent at a random point of its work."""
        trigger = self.random_source.choice(TRIGGERS)
        before = self._state(trigger)
        begin()
        if trigger == "while":
            time.sleep(self.random_source.uniform(0.1, 0.5))
        else:
            end = time.monotonic() + KUBELET_CALL_TIMEOUT_S
            while self._state(trigger) == before and time.monotonic() < end:
                continue
            if self._state(trigger) == before:
                trigger += ", which did not come"
        time.sleep(self.random_source.uniform(0, 0.006))
        self.agent.kill()
        self.points.append(trigger)
        time.sleep(self.random_source.uniform(0, 0.1))
        self.agent.start()
        self.agent.wait_for_log("info ready")
        self.agent.wait_for_log("registered with the kubelet")  # or the next pod would not reach the agent

    def _state(self, trigger: str) -> object:
        match trigger:
            case "log":
                return self.agent.process.log.stat().st_size
            case "ledger":
                return _modification_times(self.agent.state_dir / "ledger")
            case _:
                return sorted(path.name for path in self.agent.node.cdi_dir.iterdir())


def _modification_times(folder: Path) -> list[tuple[str, int]]:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the journal was replaced
            found.append((path.name, path.stat().st_mtime_ns))  # not the size: journals are preallocated
    return sorted(found)


def uids_of_specs(agent: Agent) -> set[str]:
    return {name.rpartition("_")[2].removesuffix(".json") for name in agent.node.cdi_files()}


def prepared(agent: Agent) -> int:
    lines = agent.get("/metrics")[1].splitlines()
    return int(float(next(line for line in lines if line.startswith("dra_agent_prepared_claims ")).split()[1]))


def test_agent_killed_during_prepare_and_unprepare(start_agent: StartAgent, namespace: Namespace) -> None:
    agent = start_agent("node-a", HARDWARE)
    namespace.template("gpu", request("gpu", "gpu"))
    killer = Killer(agent, random.Random(SEED))
    with assert_single_holder(agent.node):
        for number in range(ROUNDS):
            pods = [f"pod-{number}-{index}" for index in range(PODS)]
            for pod in pods:
                killer.kill(partial(namespace.pod, pod, template="gpu", node="node-a"))
            namespace.running(*pods)
            assert_consistent(namespace, agent, pods)
            for pod in pods:
                killer.kill(partial(namespace.delete_pod, pod))
            namespace.wait_until_deleted(*pods)
            until(lambda: prepared(agent) == 0, "no claim is prepared")
            assert uids_of_specs(agent) == set()
    assert len(killer.points) == 2 * PODS * ROUNDS >= 30
    missed = [point for point in killer.points if "did not come" in point]
    assert len(missed) <= 8, f"too few kills hit anything: {killer.points}"
    assert "Traceback" not in agent.read_log(current_run=False)
    assert "damaged" not in agent.read_log(current_run=False).replace("torn tail", "")


def assert_consistent(namespace: Namespace, agent: Agent, pods: list[str]) -> None:
    """Assert that every pod has exactly its allocated device, and that nothing else is prepared."""
    claims = {pod: namespace.claim_of(pod) for pod in pods}
    devices = {pod: namespace.results(claim)[0]["device"] for pod, claim in claims.items()}
    assert len(set(devices.values())) == len(pods)
    assert uids_of_specs(agent) == {claim["metadata"]["uid"] for claim in claims.values()}
    assert prepared(agent) == len(pods)
    for pod, device in devices.items():
        assert namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] == device
    for data in agent.node.cdi_files().values():
        json.loads(data)
