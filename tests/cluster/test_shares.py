"""Shares of one GPU: ten pods use the memory of an 80 GB H100, and an eleventh waits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request

GPU = "gpu-0000-1b-00-0"
HARDWARE = {"node-a": "dgx-h100"}
AGENT_CONFIG = """\
[inventory]
include = ['device.attributes["resource.kubernetes.io"].pciBusID == "0000:1b:00.0"']

[[inventory.share]]
when = 'device.attributes["dra-agent.internal"].type == "gpu"'
enforcement = "none"
minimum = "1Gi"
step = "1Gi"
default = "8Gi"
"""
SIZES = ["8Gi"] * 9 + ["7Gi"]
"""79 of the 79.6 GiB that NVML reports for an 80 GB H100."""

Agents = dict[str, Agent]


@pytest.fixture(scope="module")
def share_class(session_cluster: Cluster) -> Iterator[str]:
    selector = 'device.driver == "dra-agent.internal" && device.allowMultipleAllocations == true'
    body = {"metadata": {"name": "gpu-share"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}}
    session_cluster.api.create(CLASSES, body)
    yield "gpu-share"
    session_cluster.api.delete(CLASSES, "gpu-share")


def share(device_class: str, memory: str | None) -> Object:
    amount: Object = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return request("gpu", device_class, **amount)


def consumed(namespace: Namespace, claim: str) -> Object:
    (result,) = namespace.results(claim)
    assert result["device"] == GPU
    capacity: Object = result["consumedCapacity"]
    return capacity


def test_ten_pods_share_a_gpu_and_the_eleventh_waits(
    agents: Agents,
    namespace: Namespace,
    share_class: str,
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    published = agents["node-a"].devices()
    assert list(published) == [GPU]
    assert published[GPU]["allowMultipleAllocations"] is True
    assert published[GPU]["attributes"]["memoryEnforcement"] == {"string": "none"}
    for number, memory in enumerate(SIZES):
        namespace.claim(f"c{number}", share(share_class, memory))
        namespace.pod(f"p{number}", claim=f"c{number}")
        # kube-scheduler 1.37 may count a share twice while its allocation is being written: start one after the other.
        namespace.running(f"p{number}")
    for number, memory in enumerate(SIZES):
        assert consumed(namespace, f"c{number}")["memory"] == memory
        environment = namespace.environment(f"p{number}")
        assert environment["DRA_AGENT_DEVICE_GPU_0000_1B_00_0_CAPACITY_MEMORY"] == memory
        assert environment["DRA_AGENT_REQUEST_GPU"] == GPU
    ids = {namespace.results(f"c{number}")[0]["shareID"] for number in range(len(SIZES))}
    assert len(ids) == len(SIZES)

    namespace.claim("c10", share(share_class, "4Gi"))
    namespace.pod("p10", claim="c10")
    namespace.api.wait(
        lambda: any("FailedScheduling" in event for event in namespace.events("p10")), "the scheduler cannot place p10"
    )
    assert namespace.results("c10") == []
    kubeconfig = str(namespace.cluster.kubeconfig)
    explanation = agent_command(
        "explain", "claim", "c10", "-n", namespace.name, "--kubeconfig", kubeconfig, "-o", "json", check=False
    )
    assert explanation.returncode == 1
    assert "capacity memory has 663Mi left, 4Gi are needed" in explanation.stdout

    namespace.delete_pod("p9")
    namespace.wait_until_deleted("p9")
    namespace.delete_claim("c9")
    namespace.running("p10")
    assert consumed(namespace, "c10")["memory"] == "4Gi"


def test_requests_are_rounded_up_and_default_if_absent(agents: Agents, namespace: Namespace, share_class: str) -> None:
    namespace.claim("odd", share(share_class, "4500Mi"))
    namespace.claim("none", share(share_class, None))
    for name in ("odd", "none"):
        namespace.pod(name, claim=name)
    namespace.running("odd", "none")
    assert consumed(namespace, "odd") == {"memory": "5Gi", "multiprocessors": "0"}
    assert consumed(namespace, "none") == {"memory": "8Gi", "multiprocessors": "0"}
    # A capacity of zero is not in the environment of the container.
    assert not [key for key in namespace.environment("odd") if key.endswith("_CAPACITY_MULTIPROCESSORS")]
