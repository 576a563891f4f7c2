"""A device plugin or another DRA driver on the node: its devices are not published, and no claim is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from cluster.conftest import StartAgent
from cluster.kube.agent import DRIVER
from cluster.kube.api import CLASSES, EVENTS, NODES, SLICES
from cluster.kube.cluster import Cluster
from cluster.kube.process import until
from cluster.kube.workload import Namespace, container, request

PROFILE = "l40s"
PLUGIN = "nvidia.com/gpu"


@pytest.fixture
def device_plugin(cluster: Cluster) -> Iterator[None]:
    """node-a has the capacity that NVIDIA's device plugin would advertise."""
    advertise(cluster, "2")
    yield
    advertise(cluster, None)


def advertise(cluster: Cluster, amount: str | None) -> None:
    patch = {"status": {"capacity": {PLUGIN: amount}, "allocatable": {PLUGIN: amount}}}
    cluster.api.patch(NODES, "node-a", patch, subresource="status")


def gpus(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith("gpu-"))


@pytest.mark.usefixtures("device_plugin")
def test_device_plugin_gpus_are_unpublished_until_it_is_removed(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    agent = start_agent("node-a", PROFILE)
    assert agent.devices() and not gpus(agent.devices()), "NICs are published, GPUs are not"
    namespace.claim("gpu", request("gpu", "gpu"))
    namespace.pod("waits", claim="gpu", node="node-a")
    namespace.wait_for_scheduling_failure("waits", "cannot allocate all claims")

    def conflict_messages() -> list[str]:
        listed = cluster.api.list(EVENTS, "default", fields={"involvedObject.name": "node-a"})
        messages = [event["message"] for event in listed if event["reason"] == "SecondManager"]
        return [
            message for message in messages if "device plugin nvidia.com/gpu" in message
        ]  # other tests record Events of the Node, too

    cluster.api.wait(conflict_messages, "an Event of the Node")
    assert "advertises" in conflict_messages()[0] and "are not published by dra-agent" in conflict_messages()[0]
    counted = 'dra_agent_second_manager_devices{manager="device plugin nvidia.com/gpu"}'
    until(lambda: counted in agent.get("/metrics")[1], "they are counted")

    advertise(cluster, None)
    cluster.api.wait(lambda: gpus(agent.devices()), "the GPUs are published")
    namespace.running("waits")
    until(lambda: "dra_agent_second_manager_devices{" not in agent.get("/metrics")[1], "the metric is removed")


def test_device_of_another_driver_is_withdrawn_and_its_pod_runs(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    agent = start_agent("node-a", PROFILE)
    all_gpus = gpus(agent.devices())
    namespace.claim("held", request("gpu", "gpu"))
    namespace.pod("holder", claim="held", node="node-a")
    namespace.running("holder")
    (result,) = namespace.results("held")
    address = agent.devices()[result["device"]]["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
    pool = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    foreign_device = {"name": "gpu-0", "attributes": {"pciAddr": {"string": address}}}
    spec = {"driver": "gpu.amd.com", "nodeName": "node-a", "pool": pool, "devices": [foreign_device]}
    cluster.api.create(SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
    try:
        agent.restart()
        agent.ready()
        cluster.api.wait(lambda: result["device"] not in agent.devices(), "the device is withdrawn")
        assert gpus(agent.devices()) == [name for name in all_gpus if name != result["device"]]
        namespace.running("holder")
        # Another pod of the same claim is prepared, although the device is no longer published.
        namespace.pod("second", claim="held", node="node-a")
        namespace.running("second")
        for name in ("holder", "second"):
            namespace.delete_pod(name)
        namespace.wait_until_deleted("holder", "second")
        cluster.api.wait(lambda: not cluster.node("node-a").cdi_files(), "the claim is released")
    finally:
        cluster.api.delete(SLICES, "theirs")


def test_a_known_driver_whose_slice_selects_nodes_withholds_its_family(
    cluster: Cluster, start_agent: StartAgent
) -> None:
    agent = start_agent("node-a", PROFILE)
    all_gpus = gpus(agent.devices())
    assert all_gpus
    pool = {"name": "fabric", "generation": 1, "resourceSliceCount": 1}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeSelector": {"nodeSelectorTerms": [on_node]},
        "pool": pool,
        "devices": [{"name": "gpu-0"}],
    }
    cluster.api.create(SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
    try:
        cluster.api.wait(lambda: not gpus(agent.devices()), "the GPUs are withdrawn")
        assert agent.devices(), "NICs are still published"
        cluster.api.wait(
            lambda: any(
                "driver gpu.nvidia.com may advertise" in event["message"]
                for event in cluster.api.list(EVENTS, "default", fields={"involvedObject.name": "node-a"})
            ),
            "an Event of the Node",
        )
    finally:
        cluster.api.delete(SLICES, "theirs")
    cluster.api.wait(lambda: gpus(agent.devices()) == all_gpus, "the GPUs are published")


def test_extended_resource_of_dra_is_not_a_device_plugin(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace
) -> None:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    spec = {"extendedResourceName": PLUGIN, "selectors": [{"cel": {"expression": expression}}]}
    cluster.api.create(CLASSES, {"metadata": {"name": "drop-in"}, "spec": spec})
    try:
        agent = start_agent("node-a", PROFILE)
        assert gpus(agent.devices())
        main = container("main", resources={"limits": {PLUGIN: "1"}})
        namespace.pod("unchanged", containers=[main], node="node-a")
        namespace.running("unchanged")
        agent.restart()
        agent.ready()
        assert gpus(agent.devices()), "its pods do not change the node's capacity"
        namespace.delete_pod("unchanged")
        namespace.wait_until_deleted("unchanged")
    finally:
        cluster.api.delete(CLASSES, "drop-in")
