"""The cluster itself: the scenarios about the agent depend on it."""

from __future__ import annotations

import pytest

from cluster.kube.api import NODES, ApiStatusError
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace


def test_two_nodes_are_ready(cluster: Cluster) -> None:
    assert [node["metadata"]["name"] for node in cluster.api.list(NODES)] == ["node-a", "node-b"]
    for node in cluster.nodes:
        node.ready()


@pytest.mark.parametrize("node", ["node-a", "node-b"])
def test_a_pod_runs_completes_and_is_deleted(cluster: Cluster, namespace: Namespace, node: str) -> None:
    namespace.pod("waits", node=node)
    namespace.pod("ends", node=node, command="echo here is $HOSTNAME; cat /etc/passwd")
    assert namespace.ended("ends").startswith("here is ends\nroot:")
    body = namespace.running("waits")
    assert body["spec"]["nodeName"] == node
    assert body["status"]["podIP"].startswith(cluster.node(node).cluster_dir.pod_network(cluster.node(node).index)[:9])
    assert namespace.environment("waits")["KUBERNETES_SERVICE_HOST"] == cluster.cluster_dir.api_address
    namespace.delete_pod("waits")
    namespace.wait_until_deleted("waits")


def test_pods_continue_while_the_kubelet_is_down(cluster: Cluster, namespace: Namespace) -> None:
    namespace.pod("waits", node="node-a")
    namespace.running("waits")
    node = cluster.node("node-a")
    node.kubelet.kill()
    before = set(node.ctr("tasks", "list", "--quiet").split())
    node.kubelet.start()
    node.ready()
    namespace.running("waits")
    assert set(node.ctr("tasks", "list", "--quiet").split()) == before


def test_a_node_token_cannot_change_another_node(cluster: Cluster) -> None:
    # The Node authorizer and NodeRestriction are enabled: a node's token may change its own Node only.
    node = cluster.api.as_user(cluster.control_plane.tokens["node:node-a"])
    node.patch(NODES, "node-a", {"metadata": {"annotations": {"scenario": "own"}}})
    with pytest.raises(ApiStatusError, match="403 Forbidden"):
        node.patch(NODES, "node-b", {"metadata": {"annotations": {"scenario": "other"}}})
