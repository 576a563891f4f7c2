"""A share that nobody could hold to its memory does not start: the hook is run by the cluster's own runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.conftest import StartAgent
from cluster.kube.api import CLASSES
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace, request

CONFIG = """\
[inventory]
include = ['device.attributes["dra-agent.internal"].type == "gpu"']

[[inventory.share]]
when = "true"
enforcement = "dmem"
"""


@pytest.fixture
def share_class(cluster: Cluster) -> Iterator[str]:
    selector = 'device.driver == "dra-agent.internal" && device.allowMultipleAllocations == true'
    body = {"metadata": {"name": "limited"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}}
    cluster.api.create(CLASSES, body)
    yield "limited"
    cluster.api.delete(CLASSES, "limited")


def test_a_container_whose_cgroup_cannot_be_limited_does_not_start(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, share_class: str
) -> None:
    config = cluster.node("node-a").directory / "shares.toml"
    config.write_text(CONFIG)
    agent = start_agent("node-a", "mi300x", "--config", str(config))
    assert {device["attributes"]["memoryEnforcement"]["string"] for device in agent.devices().values()} == {"none"}

    # The kernel of the simulated host gets the controller; the containers are real, and in no cgroup of that tree.
    tree = agent.host / "sys/fs/cgroup"
    tree.mkdir(parents=True)
    addresses = [path.parent.name for path in agent.host.glob("sys/bus/pci/devices/*/mem_info_vram_total")]
    (tree / "dmem.capacity").write_text("".join(f"drm/{address}/vram0 {192 << 30}\n" for address in addresses))
    (tree / "cgroup.controllers").write_text("cpu dmem\n")
    (tree / "cgroup.subtree_control").write_text("cpu\n")
    agent.restart().ready()
    assert {device["attributes"]["memoryEnforcement"]["string"] for device in agent.devices().values()} == {"dmem"}

    namespace.claim("part", request("gpu", share_class, capacity={"requests": {"memory": "24Gi"}}))
    namespace.pod("user", claim="part")
    wanted = "dra-agent-hook: the container's share of a GPU cannot be limited: "

    def told() -> bool:
        return any(wanted in event for event in namespace.events("user"))

    namespace.api.wait(told, "the pod says why its container does not start")
    statuses = namespace.get_pod("user")["status"]["containerStatuses"]
    assert not any(status["ready"] or status.get("started") for status in statuses)
    # Which file is missed depends on how this machine's runtime names cgroups, or whether it makes any.
    told_why = [event.partition(wanted)[2].splitlines()[0] for event in namespace.events("user") if wanted in event]
    assert all("cgroup" in why for why in told_why), told_why
    assert not list(tree.rglob("dmem.max"))
