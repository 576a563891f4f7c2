"""Devices whose node operations are skipped (alpha in Kubernetes 1.37): pods run without a driver, where allowed.

The agent publishes none: these slices are written by hand. Each scenario runs with the gate on, and with the default,
where it is off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.conftest import Explain
from cluster.kube.api import CLASSES, NODES, PODS, SLICES
from cluster.kube.cluster import Cluster, running
from cluster.kube.hand_written import ANYWHERE, ROOM
from cluster.kube.workload import Namespace, request
from cluster.test_compatibility_groups import NO_DEVICES, predicted

GATE = "DRAOptionalNodeOperations"
DRIVER = "licenses.example.com"
CLASS = "license"
WITH_KUBELET, WITHOUT_KUBELET = "node-a", "node-without-kubelet"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module", params=[True, False], ids=["on", "off"])
def session_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with a kubelet that declares the feature, or a control plane with the gate off."""
    nodes = (WITH_KUBELET,) if request.param else ()
    with running(nodes=nodes, gates={GATE: True} if request.param else {}) as cluster:
        yield cluster


@pytest.fixture
def has_gate(cluster: Cluster) -> bool:
    """Whether the gate is on."""
    return bool(cluster.control_plane.gates)


@pytest.fixture
def licenses(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """A device on each node, a Node whose kubelet does not declare the feature, and a class."""
    api = cluster.api
    status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
    api.create(NODES, {"kind": "Node", "metadata": {"name": WITHOUT_KUBELET}, "status": status})
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    api.create(CLASSES, {"kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {"selectors": selectors}})
    nodes = [*(node.name for node in cluster.nodes), WITHOUT_KUBELET]
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "skipNodeOperations": ["*"]}
        body = {"kind": "ResourceSlice", "metadata": {"name": f"licenses-{node}"}}
        api.create(SLICES, {**body, "spec": {**spec, "devices": [{"name": "license"}]}})
    yield
    for pod in api.list(PODS, namespace.name):
        if pod["spec"].get("nodeName") == WITHOUT_KUBELET:
            api.delete(PODS, pod["metadata"]["name"], namespace.name, grace=0)
    for node in nodes:
        api.delete(SLICES, f"licenses-{node}")
    api.delete(CLASSES, CLASS)
    api.delete(NODES, WITHOUT_KUBELET)


def use(namespace: Namespace, name: str) -> None:
    """Create a claim for a device, and its pod, both of this name."""
    namespace.claim(name, request("license", CLASS))
    namespace.pod(name, claim=name, **ANYWHERE)


def test_a_pod_runs_without_a_driver_where_the_kubelet_can_skip_operations(
    cluster: Cluster,
    namespace: Namespace,
    has_gate: bool,
    licenses: None,
    agent_command: Command,
    explain: Explain,
    tmp_path: Path,
) -> None:
    (of_other,) = cluster.api.list(SLICES, fields={"spec.nodeName": WITHOUT_KUBELET})
    assert ("skipNodeOperations" in of_other["spec"]) is has_gate
    total, answer = predicted(cluster, namespace, agent_command, tmp_path, CLASS)
    assert total == 1, answer
    assert any(GATE in note for note in answer["notes"]) is has_gate
    use(namespace, "first")
    if not has_gate:
        cluster.api.wait(
            lambda: namespace.get_pod("first")["spec"]["nodeName"] == WITHOUT_KUBELET, "the scheduler binds the pod"
        )
        assert "skipNodeOperations" not in namespace.results("first")[0]
        return
    assert namespace.running("first")["spec"]["nodeName"] == WITH_KUBELET
    assert namespace.results("first")[0]["skipNodeOperations"] == ["*"]
    use(namespace, "second")
    namespace.wait_for_scheduling_failure("second", NO_DEVICES)
    refusal = explain("claim/second")
    assert not refusal["fits"]
    assert f"node {WITHOUT_KUBELET} does not declare {GATE}" in json.dumps(refusal)
    # The kubelet ends a pod without a driver, too.
    namespace.delete_pod("first")
    namespace.wait_until_deleted("first")
    assert namespace.running("second")["spec"]["nodeName"] == WITH_KUBELET
