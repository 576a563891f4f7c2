"""Pods and containers of claims in the agent's metrics are those that the kubelet reports in its PodResources API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

from cluster.kube.agent import Agent
from cluster.kube.process import until
from cluster.kube.workload import Namespace, request

HARDWARE = {"node-a": "dgx-h100"}
AGENT_CONFIG = '[telemetry]\ninterval = 1\nclaim_labels = "on"\nclaim_pods = true\nclaim_containers = true\n'
CALL_TIMEOUT_S = 60.0

ContainerOfClaim = tuple[str, str, str, str]
"""Namespace, claim, pod and container."""


def parts(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a field with a length, in the encoding of protocol buffers."""
    position = 0

    def varint() -> int:
        nonlocal position
        value, shift = 0, 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        length = varint()
        if key & 7 == 2:
            if key >> 3 == number:
                yield message[position : position + length]
            position += length
        else:
            assert key & 7 == 0, "the API has no other types of fields"


def reported_by_the_kubelet(kubelet_dir: Path) -> set[ContainerOfClaim]:
    """Return the containers with claims (k8s.io/kubelet/pkg/apis/podresources/v1: List)."""
    with grpc.insecure_channel(f"unix://{kubelet_dir}/pod-resources/kubelet.sock") as channel:
        call = channel.unary_unary("/v1.PodResourcesLister/List", lambda request: request, lambda response: response)
        response: bytes = call(b"", timeout=CALL_TIMEOUT_S)
    found = set()
    for pod in parts(response, 1):
        (name,) = parts(pod, 1)
        for container in parts(pod, 3):
            (container_name,) = parts(container, 1)
            for resource in parts(container, 5):
                (claim,), (namespace,) = parts(resource, 2), parts(resource, 3)
                found.add((namespace.decode(), claim.decode(), name.decode(), container_name.decode()))
    return found


def in_metrics(agent: Agent, namespace: Namespace, kind: str, *labels: str) -> set[tuple[str, ...]]:
    """Return the labels of the series of a kind, in the namespace."""
    found = set()
    for name in agent.metrics():
        series, _, text = name.partition("{")
        if series == f"dra_agent_claim_{kind}_info":
            values = dict(label.split("=") for label in text.rstrip("}").replace('"', "").split(","))
            found.add(tuple(values[label] for label in ("namespace", "claim", *labels)))
    return {one for one in found if one[0] == namespace.name}


def test_pods_of_claims_are_those_of_the_kubelet(agents: dict[str, Agent], namespace: Namespace) -> None:
    agent = agents["node-a"]
    namespace.template("own", request("gpu", "gpu"))
    names = [f"worker-{number}" for number in range(3)]
    for name in names:
        namespace.pod(name, template="own", node="node-a")
    for name in names:
        namespace.running(name)

    def of_kubelet() -> set[ContainerOfClaim]:
        return {one for one in reported_by_the_kubelet(agent.node.kubelet_dir) if one[0] == namespace.name}

    def is_equal() -> bool:
        containers = of_kubelet()
        pods: set[tuple[str, ...]] = {one[:3] for one in containers}
        return (
            in_metrics(agent, namespace, "pod", "pod") == pods
            and in_metrics(agent, namespace, "container", "pod", "container") == containers
        )

    assert {one[2] for one in of_kubelet()} == set(names)
    until(is_equal, "the agent has listed the containers")
    namespace.delete_pod(names[0])
    namespace.wait_until_deleted(names[0])
    until(is_equal, "a released claim has neither pod nor container")
    assert len(of_kubelet()) == 2
