"""A cluster in which a device plugin manages some nodes and the agent the others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES, NODES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, request

HARDWARE = {"node-a": "dgx-h100"}
"""No agent on node-b."""
RESOURCE = "vendor.example/gpu"
MANAGER = "devices.example/manager"
"""The label with the manager of a node's devices."""


@pytest.fixture
def drop_in(cluster: Cluster) -> Iterator[None]:
    """A DeviceClass that replaces the plugin's resource."""
    selector = 'device.driver == "dra-agent.internal" && device.attributes["dra-agent.internal"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": RESOURCE}
    cluster.api.create(CLASSES, {"metadata": {"name": "drop-in"}, "spec": spec})
    yield
    cluster.api.delete(CLASSES, "drop-in")


@pytest.fixture
def plugin(cluster: Cluster) -> Iterator[None]:
    """node-b is labeled as managed by the plugin, and has the plugin's resource in its capacity."""

    def set_managers(managers: tuple[str | None, str | None], amount: str | None) -> None:
        for node, manager in zip(("node-a", "node-b"), managers, strict=True):
            cluster.api.patch(NODES, node, {"metadata": {"labels": {MANAGER: manager}}})
        amounts = {"capacity": {RESOURCE: amount}, "allocatable": {RESOURCE: amount}}
        cluster.api.patch(NODES, "node-b", {"status": amounts}, subresource="status")

    set_managers(("agent", "plugin"), "4")
    yield
    set_managers((None, None), None)


def plugin_style_container(amount: str = "1") -> Object:
    """Return a container that requests the resource as from a device plugin."""
    return container("main", resources={"limits": {RESOURCE: amount}})


def test_node_labels_separate_agent_and_device_plugin_nodes(
    agents: dict[str, Agent], namespace: Namespace, plugin: None, drop_in: None
) -> None:
    # The same pod runs on both kinds of node; a claim is created for it only on the agent's node.
    for pod, manager in (("claimed", "agent"), ("plugged", "plugin")):
        namespace.pod(pod, containers=[plugin_style_container()], nodeSelector={MANAGER: manager})
    claimed, plugged = (namespace.running(pod) for pod in ("claimed", "plugged"))
    assert (claimed["spec"]["nodeName"], plugged["spec"]["nodeName"]) == ("node-a", "node-b")
    assert "extendedResourceClaimStatus" in claimed["status"]
    assert "extendedResourceClaimStatus" not in plugged["status"]
    assert [key for key in namespace.environment("claimed") if key.startswith("DRA_AGENT_DEVICE_GPU_")]
    assert not [key for key in namespace.environment("plugged") if key.startswith("DRA_AGENT_")]
    # Claims are allocated on the agent's node only.
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine")
    assert namespace.running("user")["spec"]["nodeName"] == "node-a"
    namespace.claim("other", request("gpu", "gpu"))
    namespace.pod("waits", claim="other", nodeSelector={MANAGER: "plugin"})
    namespace.wait_for_scheduling_failure("waits", "cannot allocate all claims")


def test_explain_has_what_the_device_plugin_has_left(
    cluster: Cluster,
    agents: dict[str, Agent],
    namespace: Namespace,
    plugin: None,
    drop_in: None,
    agent_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    def explained(pod: str) -> Object:
        arguments = ["explain", f"pod/{pod}", "-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig)]
        result = agent_command(*arguments, "-o", "json", check=False)
        assert result.returncode in (0, 1) and result.stdout, result.stderr
        answer: Object = json.loads(result.stdout)
        assert (result.returncode == 0) == answer["fits"]
        return answer

    def devices_on_node_b(answer: Object) -> str:
        return next(str(entry["devices"]) for entry in answer["nodes"] if entry["node"] == "node-b")

    on_plugin = {MANAGER: "plugin"}
    namespace.pod("plugged", containers=[plugin_style_container("3")], nodeSelector=on_plugin)
    namespace.running("plugged")
    namespace.pod("waits", containers=[plugin_style_container("2")], nodeSelector=on_plugin)
    namespace.wait_for_scheduling_failure("waits", f"Insufficient {RESOURCE}")
    answer = explained("waits")
    assert not answer["fits"]
    assert devices_on_node_b(answer) == f"its device plugin serves {RESOURCE}: 2 needed, 1 of 4 free"
    # Without its selector the pod would get devices of a driver on the other node.
    namespace.pod("anywhere", containers=[plugin_style_container("2")])
    assert namespace.running("anywhere")["spec"]["nodeName"] == "node-a"
