"""The Node object owns the slices: they are deleted with it, and published again for a new one."""

from __future__ import annotations

from cluster.kube.api import NODES
from cluster.kube.cluster import Cluster
from cluster.kube.process import until

from .conftest import StartAgent


def test_slices_follow_the_deletion_of_the_node_object(cluster: Cluster, start_agent: StartAgent) -> None:
    agent = start_agent("node-b", "vm-1gpu")
    before = agent.slices()
    old = cluster.api.get(NODES, "node-b")["metadata"]["uid"]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in before} == {old}

    cluster.api.delete(NODES, "node-b")
    uids = {item["metadata"]["uid"] for item in before}
    until(
        lambda: uids.isdisjoint(item["metadata"]["uid"] for item in agent.slices()),
        "the garbage collector has removed the slices of the deleted Node",
    )
    agent.wait_for_log("there is no Node 'node-b'")
    assert agent.slices() == []
    cluster.node("node-b").restart_kubelet()
    cluster.node("node-b").ready()
    new = cluster.api.get(NODES, "node-b")["metadata"]["uid"]
    assert new != old

    def owned() -> bool:
        found = agent.slices()
        owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in found}
        return owners == {new} and len(found) == len(before) and agent.pools_are_complete()

    until(owned, "the new Node owns the slices")
