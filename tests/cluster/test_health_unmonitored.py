"""NVML hangs or crashes: its GPUs are tainted as unmonitored, and no claim or device is lost."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.workload import Namespace, request
from cluster.test_health import taints, versions, wait_for_health

GPUS = ("gpu-0000-1b-00-0", "gpu-0000-43-00-0")
SETTINGS = """\
[health]
recovery_seconds = 3
[inventory]
nvml_timeout = 5.0
include = ['device.attributes["resource.kubernetes.io"].pciBusID in ["0000:1b:00.0", "0000:43:00.0"]']
"""
UPDATES = 'dra_agent_publish_writes_total{operation="update"}'


def effects(agent: Agent) -> list[list[tuple[str, str]]]:
    return [[(taint["key"], taint["effect"]) for taint in taints(agent, gpu)] for gpu in GPUS]


def crash(agent: Agent) -> None:
    """Kill the NVML worker process, as a fault in the library would."""
    for child in psutil.Process(agent.process.pid).children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGSEGV)


@pytest.mark.parametrize("failure", ["hangs", "crashes"])
def test_failing_nvml_taints_its_gpus_without_withdrawing_them(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path, failure: str
) -> None:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    agent = start_agent("node-a", "dgx-h100", "--config", str(tmp_path / "agent.toml"))
    pid = agent.process.pid
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one")
    namespace.running("user")
    wait_for_health(namespace, "user", "Healthy")
    began, before = agent.metrics()[UPDATES], versions(agent)
    since = int(time.time())
    unmonitored = [[(f"{DRIVER}/unmonitored", "None")]] * len(GPUS)

    def failed() -> bool:
        if failure == "crashes":  # repeatedly: after a single crash the next poll succeeds
            crash(agent)
        return effects(agent) == unmonitored

    if failure == "hangs":
        agent.simulate("hang")
    namespace.api.wait(failed, "both GPUs are tainted", every=0.3)
    (taint,) = taints(agent, GPUS[0])
    assert since <= time.mktime(time.strptime(taint["timeAdded"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert versions(agent).keys() == before.keys(), "slices are edited in place"
    if failure == "hangs":
        wait_for_health(namespace, "user", "Unknown")
        # During the hang the scheduler allocates the other GPU to the next claim, and it is prepared.
        namespace.claim("two", request("gpu", "gpu"))
        namespace.pod("next", claim="two")
        namespace.running("next")
        devices = {namespace.results(claim)[0]["device"] for claim in ("one", "two")}
        assert devices == set(GPUS) and effects(agent) == unmonitored
        agent.simulate("clear")
    namespace.api.wait(lambda: effects(agent) == [[], []], "the taints are gone")
    wait_for_health(namespace, "user", "Healthy")
    pods = [namespace.get_pod(name) for name in (("user", "next") if failure == "hangs" else ("user",))]
    assert [pod["status"]["phase"] for pod in pods] == ["Running"] * len(pods)
    assert not any("deletionTimestamp" in pod["metadata"] for pod in pods)
    assert agent.process.pid == pid and agent.metrics()[UPDATES] - began <= 2 * len(GPUS)
