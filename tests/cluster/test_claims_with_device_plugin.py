"""A cluster in which a device plugin manages some nodes and the agent the others."""

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


def plugin_style_container() -> Object:
    """Return a container that requests the resource as from a device plugin."""
    return container("main", resources={"limits": {RESOURCE: "1"}})


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
