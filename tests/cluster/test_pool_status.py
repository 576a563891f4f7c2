"""ResourcePoolStatusRequest, alpha in Kubernetes 1.37: the control plane counts the devices of the agent's pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.conftest import apply_classes
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import Kind
from cluster.kube.cluster import Cluster, running
from cluster.kube.workload import Namespace, request

GATES = {"DRAResourcePoolStatus": True}
REQUESTS = Kind("resource.k8s.io/v1alpha3", "resourcepoolstatusrequests", namespaced=False)
HARDWARE = {"node-a": "dgx-h100"}
GPUS = 8


@pytest.fixture(scope="module")
def session_cluster() -> Iterator[Cluster]:
    """A separate cluster: gates are set when the API server starts."""
    with running(nodes=tuple(HARDWARE), gates=GATES, runtime_config={REQUESTS.version: True}) as cluster:
        apply_classes(cluster)
        yield cluster


def pools(cluster: Cluster, name: str) -> dict[str, Any]:
    """Ask for the status of all pools of the driver; a request is answered once."""
    cluster.api.create(REQUESTS, {"metadata": {"name": name}, "spec": {"driver": DRIVER}})

    def status() -> Any:
        return cluster.api.get(REQUESTS, name).get("status")

    cluster.api.wait(status, f"the controller answers {name}")
    found = {pool["poolName"]: pool for pool in status()["pools"]}
    cluster.api.delete(REQUESTS, name)
    assert not [pool for pool in found.values() if "validationError" in pool]
    return found


def test_devices_are_counted_as_allocated_and_available(
    agents: dict[str, Agent], namespace: Namespace, cluster: Cluster
) -> None:
    agent = agents["node-a"]
    before = pools(cluster, "before")
    assert set(before) == set(agent.pools())
    gpus = before["node-a/gpu"]
    assert (gpus["nodeName"], gpus["resourceSliceCount"]) == ("node-a", len(agent.pools()["node-a/gpu"]))
    assert (gpus["totalDevices"], gpus["allocatedDevices"], gpus["availableDevices"]) == (GPUS, 0, GPUS)
    namespace.claim("two", request("gpu", "gpu", count=2))
    namespace.pod("user", claim="two")
    namespace.running("user")
    gpus = pools(cluster, "after")["node-a/gpu"]
    assert (gpus["totalDevices"], gpus["allocatedDevices"], gpus["availableDevices"]) == (GPUS, 2, GPUS - 2)
