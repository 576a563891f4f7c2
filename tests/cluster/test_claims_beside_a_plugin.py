"""A cluster of which a device plugin has some nodes, and the agent the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.kube.agent import Agent
from cluster.kube.api import CLASSES, NODES, Object
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, container, request

HARDWARE = {"node-a": "dgx-h100"}
"""No agent on node-b."""
RESOURCE = "vendor.example/gpu"
MANAGER = "devices.example/manager"
"""The label that says who manages a node's devices."""


@pytest.fixture
def drop_in(cluster: Cluster) -> Iterator[None]:
    """A DeviceClass stands for the plugin's resource."""
    selector = 'device.driver == "dra-agent.internal" && device.attributes["dra-agent.internal"].type == "gpu"'
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": RESOURCE}
    cluster.api.create(CLASSES, {"metadata": {"name": "drop-in"}, "spec": spec})
    yield
    cluster.api.delete(CLASSES, "drop-in")


@pytest.fixture
def plugin(cluster: Cluster) -> Iterator[None]:
    """node-b is labelled as the plugin's, and has the plugin's resource in its capacity."""

    def change(managers: tuple[str | None, str | None], amount: str | None) -> None:
        for node, manager in zip(("node-a", "node-b"), managers, strict=True):
            cluster.api.patch(NODES, node, {"metadata": {"labels": {MANAGER: manager}}})
        amounts = {"capacity": {RESOURCE: amount}, "allocatable": {RESOURCE: amount}}
        cluster.api.patch(NODES, "node-b", {"status": amounts}, subresource="status")

    change(("agent", "plugin"), "4")
    yield
    change((None, None), None)


def asking() -> Object:
    """A container that asks as it would ask a device plugin."""
    return container("main", resources={"limits": {RESOURCE: "1"}})


def test_node_labels_that_keep_a_device_plugins_nodes_apart(
    agents: dict[str, Agent], namespace: Namespace, plugin: None, drop_in: None
) -> None:
    # The same pod runs on both kinds of node; only where the agent is, a claim is made for it.
    for pod, manager in (("claimed", "agent"), ("plugged", "plugin")):
        namespace.pod(pod, containers=[asking()], nodeSelector={MANAGER: manager})
    claimed, plugged = (namespace.running(pod) for pod in ("claimed", "plugged"))
    assert (claimed["spec"]["nodeName"], plugged["spec"]["nodeName"]) == ("node-a", "node-b")
    assert "extendedResourceClaimStatus" in claimed["status"]
    assert "extendedResourceClaimStatus" not in plugged["status"]
    assert [key for key in namespace.environment("claimed") if key.startswith("DRA_AGENT_DEVICE_GPU_")]
    assert not [key for key in namespace.environment("plugged") if key.startswith("DRA_AGENT_")]
    # Claims find devices where the agent is, and nothing on the plugin's nodes.
    namespace.claim("mine", request("gpu", "gpu"))
    namespace.pod("user", claim="mine")
    assert namespace.running("user")["spec"]["nodeName"] == "node-a"
    namespace.claim("other", request("gpu", "gpu"))
    namespace.pod("waits", claim="other", nodeSelector={MANAGER: "plugin"})
    namespace.scheduled_never("waits", "cannot allocate all claims")
