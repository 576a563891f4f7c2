"""Workloads of many pods: Jobs that need more GPUs than exist, a rolling Deployment, and pods of several priorities."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLAIMS, CLASSES, DEPLOYMENTS, JOBS, PODS, Kind, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, pod_spec, request

HARDWARE = {"node-b": "l40s"}
"""Four GPUs in the whole cluster."""
GPUS = 4
PRIORITY_CLASSES = Kind("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)

Agents = dict[str, Agent]


def pods_of(namespace: Namespace, app: str) -> list[Object]:
    return namespace.api.list(PODS, namespace.name, labels=f"app={app}")


def test_a_job_of_8_pods_completes_on_4_gpus(agents: Agents, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    # /proc/uptime is the same clock in every container of the host.
    now = "$(cut -d' ' -f1 /proc/uptime)"
    command = f"from={now}; ls -d /dev/nvidia[0-9]*; sleep 2; echo held $DRA_AGENT_REQUEST_GPU $from {now}"
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pod_spec(template="one-gpu", command=command)}
    body = {"metadata": {"name": "train"}, "spec": {"completions": 8, "parallelism": 8, "template": template}}
    namespace.api.create(JOBS, body, namespace.name)

    def done() -> bool:
        return bool(namespace.api.get(JOBS, "train", namespace.name)["status"].get("succeeded") == 8)

    namespace.api.wait(done, "all eight pods have succeeded")
    assert "failed" not in namespace.api.get(JOBS, "train", namespace.name)["status"]
    spans_by_device: dict[str, list[tuple[float, float]]] = {}
    for pod in pods_of(namespace, "train"):
        output = namespace.log(pod["metadata"]["name"])
        match = re.search(r"^held (\S+) (\S+) (\S+)$", output, re.MULTILINE)
        assert match, output
        assert len(re.findall(r"^/dev/nvidia\d+$", output, re.MULTILINE)) == 1, output
        spans_by_device.setdefault(match[1], []).append((float(match[2]), float(match[3])))
    assert sum(len(spans) for spans in spans_by_device.values()) == 8
    assert len(spans_by_device) == GPUS, f"not every GPU was used: {spans_by_device}"
    for device, spans in spans_by_device.items():
        spans.sort()
        ends = [end for _, end in spans]
        begins = [begin for begin, _ in spans]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False)), f"{device} at once: {spans}"
    # Every claim belonged to a pod, is released, and is deleted with it.
    namespace.api.wait(lambda: not namespace.api.list(CLAIMS, namespace.name), "the pods' claims are gone")
    assert not [name for name in agents["node-b"].node.cdi_files() if "-claim_" in name]


def test_a_job_that_was_written_for_a_device_plugin(agents: Agents, namespace: Namespace, extended: str) -> None:
    """Three pods of two GPUs each complete on four GPUs."""
    limits = {"resources": {"limits": {extended: "2"}}}
    main = container("main", command="ls -d /dev/nvidia[0-9]*; sleep 1", **limits)
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pod_spec(containers=[main])}
    body = {"metadata": {"name": "train"}, "spec": {"completions": 3, "parallelism": 3, "template": template}}
    namespace.api.create(JOBS, body, namespace.name)

    def done() -> bool:
        return bool(namespace.api.get(JOBS, "train", namespace.name)["status"].get("succeeded") == 3)

    namespace.api.wait(done, "all three pods have succeeded")
    for pod in pods_of(namespace, "train"):
        output = namespace.log(pod["metadata"]["name"])
        assert len(re.findall(r"^/dev/nvidia\d+$", output, re.MULTILINE)) == 2, output


def test_the_scheduler_preempts_no_holder_of_a_device(
    agents: Agents, namespace: Namespace, priorities: tuple[str, str]
) -> None:
    """kubernetes/enhancements#5690: a pod of higher priority waits until a device is free."""
    low, high = priorities
    namespace.template("one-gpu", request("gpu", "gpu"))
    holders = [f"low-{number}" for number in range(GPUS)]
    for name in holders:
        namespace.pod(name, template="one-gpu", priorityClassName=low)
    namespace.running(*holders)
    namespace.pod("high", template="one-gpu", priorityClassName=high)
    namespace.wait_for_scheduling_failure("high", "cannot allocate all claims")
    namespace.wait_for_scheduling_failure("high", "Preemption is not helpful for scheduling")
    bodies = [namespace.get_pod(name) for name in holders]
    assert not [body["metadata"]["name"] for body in bodies if "deletionTimestamp" in body["metadata"]]
    namespace.delete_pod(holders[0])
    namespace.running("high")


@pytest.fixture
def extended(cluster: Cluster) -> Iterator[str]:
    """The name of an extended resource for all GPUs."""
    name, resource = "gpu-of-a-plugin", "nvidia.example/gpu"
    selectors = cluster.api.get(CLASSES, "gpu")["spec"]["selectors"]
    spec = {"selectors": selectors, "extendedResourceName": resource}
    cluster.api.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    yield resource
    cluster.api.delete(CLASSES, name)


@pytest.fixture
def priorities(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The names of a low and of a high PriorityClass."""
    values = {"devices-low": -10, "devices-high": 1000}
    for name, value in values.items():
        cluster.api.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    yield "devices-low", "devices-high"
    for name in values:
        cluster.api.delete(PRIORITY_CLASSES, name)


def deployment(version: str) -> Object:
    spec = pod_spec(
        claims=[{"name": "devices", "resourceClaimTemplateName": "one-gpu"}],
        containers=[container("main", "devices", env=[{"name": "VERSION", "value": version}])],
        restartPolicy="Always",
    )
    return {
        "metadata": {"name": "serve"},
        "spec": {
            "replicas": GPUS,
            "selector": {"matchLabels": {"app": "serve"}},
            # Every GPU is in use: a new pod is scheduled when an old one has ended.
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"app": "serve"}}, "spec": spec},
        },
    }


def versions(namespace: Namespace) -> dict[str, str]:
    """Return the version of every Running pod, by name."""
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["env"][0]["value"]
        for pod in pods_of(namespace, "serve")
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def test_a_rolling_update_of_a_deployment_reuses_gpus(agents: Agents, namespace: Namespace) -> None:
    namespace.template("one-gpu", request("gpu", "gpu"))
    namespace.api.create(DEPLOYMENTS, deployment("1"), namespace.name)

    def all_of(version: str) -> bool:
        found = versions(namespace)
        return len(found) == GPUS == len(pods_of(namespace, "serve")) and set(found.values()) == {version}

    namespace.api.wait(lambda: all_of("1"), "version 1 runs")
    before = set(versions(namespace))
    change = {"spec": deployment("2")["spec"]}
    namespace.api.patch(DEPLOYMENTS, "serve", change, namespace.name)
    fewest = GPUS

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, len(versions(namespace)))
        return all_of("2")

    namespace.api.wait(rolled, "version 2 runs")
    assert not before & set(versions(namespace))
    # Kubernetes keeps all but one Available. Counted by Running, a successor can be late.
    assert fewest >= GPUS - 2
    devices = [namespace.environment(pod)["DRA_AGENT_REQUEST_GPU"] for pod in versions(namespace)]
    assert sorted(devices) == sorted(name for name in agents["node-b"].devices() if name.startswith("gpu-"))
    claims = namespace.api.list(CLAIMS, namespace.name)
    assert len(claims) == GPUS
