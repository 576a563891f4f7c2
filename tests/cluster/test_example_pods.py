"""The workloads of `examples/pods`: each is applied as it is, except for its image, and its pods have their devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.kube import example_pods
from cluster.kube.agent import Agent
from cluster.kube.api import JOBS, NAMESPACES, PODS, ApiStatusError
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace

HARDWARE = {"node-a": "dgx-h100", "node-b": "l40s"}
SHARED_GPU = "0000:01:00.0"
"""An L40S of node-b."""
AGENT_CONFIG = f"""
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["dra-agent.internal"].productName.startsWith("NVIDIA H100")'

[[inventory.share]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{SHARED_GPU}"'
enforcement = "none"
minimum = "1Gi"
step = "1Gi"
default = "8Gi"
"""

Agents = dict[str, Agent]
Apply = Callable[[str], None]


@pytest.fixture
def apply(cluster: Cluster, namespace: Namespace) -> Iterator[Apply]:
    """Apply an example in the namespace with the image of the test cluster; delete its objects after the test."""
    applied: list[str] = []

    def run(name: str) -> None:
        text = example_pods.manifest(name)
        applied.append(text)
        cluster.kubectl("apply", "-n", namespace.name, "--validate=strict", "-f", "-", input=text)

    yield run
    for text in applied:
        cluster.kubectl("delete", "-n", namespace.name, "--wait=false", "--ignore-not-found", "-f", "-", input=text)


def devices_of(namespace: Namespace, pod: str, pod_claim: str = "gpu") -> list[str]:
    return [result["device"] for result in namespace.results(namespace.claim_of(pod, pod_claim))]


def pods_of(namespace: Namespace, app: str, count: int) -> list[str]:
    """Return the names of the pods with a label once there are so many."""
    label = f"app={app}"
    namespace.api.wait(lambda: len(namespace.api.list(PODS, namespace.name, labels=label)) == count, f"{count} {app}")
    return [pod["metadata"]["name"] for pod in namespace.api.list(PODS, namespace.name, labels=label)]


def test_every_example_has_a_test() -> None:
    named = "".join(path.read_text() for path in Path(__file__).parent.glob("test_example_pods*.py"))
    names = [path.name for path in sorted(example_pods.EXAMPLES.iterdir())]
    assert [name for name in names if f'"{name}"' not in named] == []


def test_pod(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("pod.yaml")
    namespace.running("one-gpu")
    (device,) = devices_of(namespace, "one-gpu")
    # A container is running before its first output is in the log.
    namespace.api.wait(
        lambda: f"DRA_AGENT_REQUEST_GPU={device}" in namespace.log("one-gpu"), "its device is in the log"
    )


def test_deployment(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("deployment.yaml")
    pods = pods_of(namespace, "server", 2)
    namespace.running(*pods)
    assert len({(device, pod) for pod in pods for device in devices_of(namespace, pod)}) == 2


def test_job(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("job.yaml")

    def is_complete() -> bool:
        return bool(namespace.api.get(JOBS, "batch", namespace.name)["status"].get("succeeded") == 4)

    namespace.api.wait(is_complete, "four pods have succeeded")
    assert "failed" not in namespace.api.get(JOBS, "batch", namespace.name)["status"]


def test_stateful_set(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("statefulset.yaml")
    pods = pods_of(namespace, "worker", 2)
    namespace.running(*pods)
    for pod in pods:
        results = namespace.results(namespace.claim_of(pod, "devices"))
        published = agents["node-a"].devices()
        switches = {published[result["device"]]["attributes"]["pcieSwitch"]["string"] for result in results}
        assert (len(results), len(switches)) == (2, 1)


def test_shared_claim(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("shared-claim.yaml")
    namespace.running("notebook", "profiler")
    environments = [namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in ("notebook", "profiler")]
    assert environments[0] == environments[1]


def test_mig(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("mig.yaml")
    namespace.running("mig")
    (device,) = devices_of(namespace, "mig")
    assert "-mig-" in device


def test_share(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("share.yaml")
    namespace.running("share")
    (result,) = namespace.results(namespace.claim_of("share", "gpu"))
    assert result["consumedCapacity"]["memory"] == "4Gi"


def test_alternatives(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("alternatives.yaml")
    namespace.running("alternatives")
    results = namespace.results(namespace.claim_of("alternatives", "gpus"))
    assert [result["request"] for result in results] == ["gpus/many"] * 4, "no GPU of this cluster has 100 GiB"


def test_extended_resource(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("extended-resource.yaml")
    status = namespace.running("extended-resource")["status"]["extendedResourceClaimStatus"]
    assert len(namespace.results(namespace.get_claim(status["resourceClaimName"]))) == 1


def test_admin_access(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    with pytest.raises(AssertionError, match="admin access to devices requires"):
        apply("admin-access.yaml")
    labels = {"resource.kubernetes.io/admin-access": "true"}
    namespace.api.patch(NAMESPACES, namespace.name, {"metadata": {"labels": labels}})

    def is_applied() -> bool:
        try:
            apply("admin-access.yaml")
        except (AssertionError, ApiStatusError) as error:
            assert "admin access to devices requires" in str(error)
            return False
        return True

    namespace.api.wait(is_applied, "the API server has seen the label of the namespace")
    namespace.running("monitor")
    results = namespace.results(namespace.claim_of("monitor", "gpus"))
    node = results[0]["pool"].partition("/")[0]
    gpus = [one for one in agents[node].devices().values() if one["attributes"]["type"]["string"] == "gpu"]
    assert len(results) == len(gpus)
    assert all(result["adminAccess"] for result in results)


def test_toleration_of_a_reclaim(agents: Agents, namespace: Namespace, apply: Apply) -> None:
    apply("reclaim.yaml")
    namespace.running("checkpoint")
    (result,) = namespace.results(namespace.claim_of("checkpoint", "gpu"))
    ours = [one for one in result["tolerations"] if one["key"] == "dra-agent.internal/reclaim"]
    assert [(one["effect"], one["tolerationSeconds"]) for one in ours] == [("NoExecute", 60)]
