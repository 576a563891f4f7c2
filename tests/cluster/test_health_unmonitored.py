"""NVIDIA's library hangs or crashes: its GPUs are tainted, everybody sees it, and nobody loses anything by it."""

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
from cluster.test_health import taints, until_health, versions

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
    """What a fault in the vendor's code does to the process that it runs in."""
    for child in psutil.Process(agent.process.pid).children():
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGSEGV)


@pytest.mark.parametrize("how", ["hangs", "crashes"])
def test_a_library_that_fails_taints_its_gpus_and_takes_them_from_nobody(
    start_agent: StartAgent, namespace: Namespace, tmp_path: Path, how: str
) -> None:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    agent = start_agent("node-a", "dgx-h100", "--config", str(tmp_path / "agent.toml"))
    pid = agent.process.pid
    namespace.claim("one", request("gpu", "gpu"))
    namespace.pod("user", claim="one")
    namespace.running("user")
    until_health(namespace, "user", "Healthy")
    began, before = agent.metrics()[UPDATES], versions(agent)
    since = int(time.time())
    told = [[(f"{DRIVER}/unmonitored", "None")]] * len(GPUS)

    def failed() -> bool:
        if how == "crashes":  # again and again: one that crashes once is back at the next look
            crash(agent)
        return effects(agent) == told

    if how == "hangs":
        agent.simulate("hang")
    namespace.api.wait(failed, "both GPUs are tainted", every=0.3)
    (taint,) = taints(agent, GPUS[0])
    assert since <= time.mktime(time.strptime(taint["timeAdded"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
    assert versions(agent).keys() == before.keys(), "slices are edited in place"
    if how == "hangs":
        until_health(namespace, "user", "Unknown")
        # For as long as it hangs: the scheduler gives the other GPU to the next claim, and it is prepared.
        namespace.claim("two", request("gpu", "gpu"))
        namespace.pod("next", claim="two")
        namespace.running("next")
        devices = {namespace.results(claim)[0]["device"] for claim in ("one", "two")}
        assert devices == set(GPUS) and effects(agent) == told
        agent.simulate("clear")
    namespace.api.wait(lambda: effects(agent) == [[], []], "the taints are gone")
    until_health(namespace, "user", "Healthy")
    pods = [namespace.get_pod(name) for name in (("user", "next") if how == "hangs" else ("user",))]
    assert [pod["status"]["phase"] for pod in pods] == ["Running"] * len(pods)
    assert not any("deletionTimestamp" in pod["metadata"] for pod in pods)
    assert agent.process.pid == pid and agent.metrics()[UPDATES] - began <= 2 * len(GPUS)
