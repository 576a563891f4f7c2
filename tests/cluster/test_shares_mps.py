"""MPS shares on a real cluster: a container is a client with limits; the daemon runs while claims exist."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster.kube.agent import Agent
from cluster.kube.workload import Namespace, opaque, request

GPU = "gpu-0000-1b-00-0"
HARDWARE = {"node-a": "dgx-h100"}
AGENT_CONFIG = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"']

[[inventory.share]]
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
enforcement = "mps"
default = "8Gi"
multiprocessors = true

[health]
recovery_seconds = 1
"""

Agents = dict[str, Agent]


def share(namespace: Namespace, name: str, memory: str, multiprocessors: str | None = None, **config: int) -> None:
    """Create a claim of a share and a pod that uses it."""
    amounts = {"memory": memory} | ({"multiprocessors": multiprocessors} if multiprocessors else {})
    settings = {"apiVersion": "dra-agent.internal/v1", "kind": "ShareConfig", **config}
    namespace.claim(
        name,
        request("gpu", "nvidia-share", capacity={"requests": amounts}),
        config=[opaque("dra-agent.internal", settings)] if config else [],
    )
    namespace.pod(name, claim=name)


def mps_dir(agent: Agent) -> Path:
    return agent.state_dir / "mps" / GPU


def daemon_pid(agent: Agent) -> int | None:
    """Return the pid of the running control daemon, from its pid file."""
    try:
        pid = int((mps_dir(agent) / "pipe/nvidia-cuda-mps-control.pid").read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def compute_mode(agent: Agent) -> int:
    from dra_simulate import nvml

    state = nvml.read(agent.host / "lib")
    uuid = next(gpu.uuid for gpu in state.devices if gpu.pci.address.lower().endswith("1b:00.0"))
    condition = state.conditions.get(uuid)
    return condition.compute_mode if condition is not None else 0


def taints(agent: Agent) -> list[str]:
    return [taint["key"] for taint in agent.devices()[GPU].get("taints", [])]


def test_container_is_an_mps_client_and_daemon_lives_with_claims(agents: Agents, namespace: Namespace) -> None:
    agent = agents["node-a"]
    assert agent.devices()[GPU]["attributes"]["memoryEnforcement"] == {"string": "mps"}
    assert daemon_pid(agent) is None
    share(namespace, "small", "4Gi", "33")
    share(namespace, "large", "16Gi", activeThreadPercentage=10)
    namespace.running("small", "large")
    small, large = namespace.environment("small"), namespace.environment("large")
    assert small["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert small["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert large["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16384M"
    assert large["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    for pod in ("small", "large"):
        assert "control" in namespace.execute(pod, "ls $CUDA_MPS_PIPE_DIRECTORY").split()
        namespace.execute(pod, f"touch /dev/shm/{pod}")
    # Clients and daemon share /dev/shm, separate from the host's.
    assert namespace.execute("small", "ls /dev/shm").split() == ["large", "small"]
    assert not Path("/dev/shm/small").exists()
    assert compute_mode(agent) == 3
    first = daemon_pid(agent)
    assert first is not None

    namespace.delete_pod("small")
    namespace.wait_until_deleted("small")
    assert daemon_pid(agent) == first

    os.kill(first, signal.SIGKILL)
    namespace.api.wait(lambda: "dra-agent.internal/sharing-down" in taints(agent), "the GPU is tainted")
    assert daemon_pid(agent) not in (None, first)
    namespace.api.wait(lambda: not taints(agent), "the taint is removed when the daemon runs")

    namespace.delete_pod("large")
    namespace.wait_until_deleted("large")
    namespace.api.wait(lambda: daemon_pid(agent) is None and compute_mode(agent) == 0, "the daemon is stopped")


def test_mps_daemon_outlives_the_agent(agents: Agents, namespace: Namespace) -> None:
    agent = agents["node-a"]
    share(namespace, "user", "4Gi")
    namespace.running("user")
    first = daemon_pid(agent)
    assert first is not None
    agent.kill()
    agent.start().ready()
    assert daemon_pid(agent) == first
    namespace.delete_pod("user")
    namespace.wait_until_deleted("user")
    namespace.api.wait(lambda: daemon_pid(agent) is None and compute_mode(agent) == 0, "the new agent stops the daemon")


def test_invalid_share_setting_is_named(agents: Agents, namespace: Namespace) -> None:
    share(namespace, "odd", "4Gi", activeThreadPercentage=101)

    def reported() -> bool:
        return any("activeThreadPercentage" in event for event in namespace.events("odd"))

    namespace.api.wait(reported, "the kubelet reports the invalid field")
    assert daemon_pid(agents["node-a"]) is None
