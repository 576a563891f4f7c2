"""A container whose memory share cannot be limited does not start: the container runtime runs the hook."""

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


def test_container_without_a_limitable_cgroup_does_not_start(
    cluster: Cluster, start_agent: StartAgent, namespace: Namespace, share_class: str
) -> None:
    config = cluster.node("node-a").directory / "shares.toml"
    config.write_text(CONFIG)
    agent = start_agent("node-a", "mi300x", "--config", str(config))
    assert {device["attributes"]["memoryEnforcement"]["string"] for device in agent.devices().values()} == {"none"}

    # The simulated kernel gets the controller; the containers are real, and not in a cgroup of that tree.
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
    message = "dra-agent-hook: the container's share of a GPU cannot be limited: "

    def reported() -> bool:
        return any(message in event for event in namespace.events("user"))

    namespace.api.wait(reported, "the pod's Event has the reason")
    statuses = namespace.get_pod("user")["status"]["containerStatuses"]
    assert not any(status["ready"] or status.get("started") for status in statuses)
    # The missing file depends on how this machine's runtime names cgroups, or whether it creates any.
    reasons = [event.partition(message)[2].splitlines()[0] for event in namespace.events("user") if message in event]
    assert all("cgroup" in reason for reason in reasons), reasons
    assert not list(tree.rglob("dmem.max"))
