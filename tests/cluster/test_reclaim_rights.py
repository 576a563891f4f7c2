"""What an agent may do to pods and its node where the chart lets it move pods and cordon, asked of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import NODES, PODS, Api, Kind
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace
from cluster.test_rights import kinds_of_tokens, refusal

CHART_VALUES = ("podEviction=evict",)
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)
NOT_ITS_NODE = "an agent may change its own node only"
CONDITION = f"{DRIVER}/ReclaimNotice"
CORDON = "node.kubernetes.io/unschedulable"


@pytest.fixture
def own(cluster: Cluster) -> Api:
    """An agent of node-a, once the policies that narrow its rights are in force."""
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    api = cluster.api.as_user(identity.token("node-a"))
    identity.token("node-b")  # makes a pod on that node
    foreign = PODS.path(identity.namespace, "agent-node-b", None)

    def narrowed() -> bool:
        return NOT_ITS_NODE in refusal(lambda: api.patch(NODES, "node-b", {"spec": {"unschedulable": None}}))

    cluster.api.wait(narrowed, "the policy about nodes is in force")
    cluster.api.wait(
        lambda: refusal(lambda: api.call("DELETE", foreign, {"dryRun": ["All"]})), "the policy about pods is in force"
    )
    return api


@pytest.fixture
def tokens(cluster: Cluster, own: Api) -> dict[str, Api]:
    """Every kind of token of an agent of node-a."""
    return kinds_of_tokens(cluster, cluster.identity(DRIVER, *CHART_VALUES))


@pytest.fixture
def nowhere(tokens: dict[str, Api]) -> Api:
    """The same account with a token that names no node."""
    return tokens["bound to nothing"]


def test_policies_compile_against_the_types_of_the_server(cluster: Cluster, own: Api) -> None:
    found = [
        policy for policy in cluster.api.list(POLICIES) if policy["metadata"]["name"].endswith(("-nodes", "-pods"))
    ]
    assert len(found) >= 2
    for name in (policy["metadata"]["name"] for policy in found):

        def checked(name: str = name) -> bool:
            return "typeChecking" in cluster.api.get(POLICIES, name).get("status", {})

        cluster.api.wait(checked, f"the types of {name} are checked")
        assert not cluster.api.get(POLICIES, name)["status"]["typeChecking"].get("expressionWarnings")


def test_the_own_node_is_closed_and_opened_and_no_other(cluster: Cluster, own: Api, nowhere: Api) -> None:
    for closed in (True, None):
        assert refusal(lambda closed=closed: own.patch(NODES, "node-a", {"spec": {"unschedulable": closed}})) == ""
    close = {"spec": {"unschedulable": True}}
    assert NOT_ITS_NODE in refusal(lambda: own.patch(NODES, "node-b", close))
    assert NOT_ITS_NODE in refusal(lambda: nowhere.patch(NODES, "node-a", close))
    assert "unschedulable" not in cluster.api.get(NODES, "node-b")["spec"]


@pytest.mark.parametrize("who", ["pod", "bound to the node", "bound to nothing", "kubelet"])
def test_no_token_closes_or_taints_another_node(cluster: Cluster, tokens: dict[str, Api], who: str) -> None:
    before = cluster.api.get(NODES, "node-b")["spec"]
    evicting = [{"key": "x", "effect": "NoExecute"}]
    for spec in ({"unschedulable": True}, {"taints": evicting}, {"unschedulable": True, "taints": evicting}):
        assert refusal(lambda spec=spec: tokens[who].patch(NODES, "node-b", {"spec": spec})), spec
    assert cluster.api.get(NODES, "node-b")["spec"] == before


@pytest.mark.parametrize("who", ["pod", "bound to the node", "bound to nothing", "kubelet"])
def test_no_token_evicts_the_pods_of_its_own_node_by_a_taint(
    cluster: Cluster, tokens: dict[str, Api], who: str
) -> None:
    for key in ("x", CORDON):
        taints = [{"key": key, "effect": "NoExecute"}]
        assert refusal(lambda taints=taints: tokens[who].patch(NODES, "node-a", {"spec": {"taints": taints}})), key
    assert "taints" not in cluster.api.get(NODES, "node-a")["spec"]


@pytest.mark.parametrize("who", ["pod", "bound to the node"])
@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"x": "y"}}},
        {"metadata": {"annotations": {"x": "y"}}},
        {"metadata": {"finalizers": ["example.com/x"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}},
        {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}},
        # It would evict every pod of the node that does not tolerate it.
        {"spec": {"taints": [{"key": CORDON, "effect": "NoExecute"}]}},
        {"spec": {"taints": [{"key": CORDON, "effect": "NoExecute"}, {"key": CORDON, "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": CORDON, "effect": "PreferNoSchedule"}]}},
        {"spec": {"providerID": "x://y"}},
    ],
    ids=str,
)
def test_nothing_else_of_the_own_node_is_changed(tokens: dict[str, Api], who: str, change: dict[str, Any]) -> None:
    assert "whether it takes new pods" in refusal(lambda: tokens[who].patch(NODES, "node-a", change))


def test_the_taint_of_a_closed_node_is_the_agents_to_add_and_remove(cluster: Cluster, own: Api) -> None:
    kept = [one for one in cluster.api.get(NODES, "node-a")["spec"].get("taints", []) if one["key"] != CORDON]
    for taints in ([*kept, {"key": CORDON, "effect": "NoSchedule"}], kept):
        assert refusal(lambda taints=taints: own.patch(NODES, "node-a", {"spec": {"taints": taints}})) == ""


def says(*types: str) -> dict[str, Any]:
    """A patch of a Node's status with these conditions beside those that it has."""
    stamp = "2026-01-31T12:00:00Z"
    said = {"status": "True", "reason": "Test", "message": "", "lastTransitionTime": stamp, "lastHeartbeatTime": stamp}
    return {"status": {"conditions": [{"type": one, **said} for one in types]}}


def patch_status(api: Api, node: str, change: dict[str, Any]) -> str:
    content = "application/strategic-merge-patch+json"
    return refusal(lambda: api.call("PATCH", NODES.path(None, node, "status"), change, media_type=content))


def test_one_condition_of_the_own_node_is_said_and_nothing_else(cluster: Cluster, own: Api, nowhere: Api) -> None:
    def conditions(node: str) -> set[str]:
        return {one["type"] for one in cluster.api.get(NODES, node)["status"]["conditions"]}

    assert patch_status(own, "node-a", says(CONDITION)) == ""
    assert CONDITION in conditions("node-a") and "Ready" in conditions("node-a")
    assert NOT_ITS_NODE in patch_status(own, "node-b", says(CONDITION))
    assert NOT_ITS_NODE in patch_status(nowhere, "node-a", says(CONDITION))
    only = f"but the condition {CONDITION}"
    assert only in patch_status(own, "node-a", says("Ready"))
    assert only in patch_status(own, "node-a", says(CONDITION, "another/Condition"))
    assert only in patch_status(own, "node-a", {"status": {"capacity": {"example.com/x": "1"}}})
    assert only in patch_status(own, "node-a", {"status": {"capacity": None}})
    assert only in patch_status(own, "node-a", {"status": {"addresses": [{"type": "Hostname", "address": "x"}]}})
    assert only in patch_status(own, "node-a", {"status": {"volumesInUse": ["x/y"]}})
    assert "one condition" in patch_status(own, "node-a", {"metadata": {"labels": {"x": "y"}}})
    gone = {"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}
    assert patch_status(own, "node-a", gone) == ""
    assert CONDITION not in conditions("node-a")


def test_nodes_are_neither_made_nor_deleted(own: Api) -> None:
    new = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}}
    assert "cannot create" in refusal(lambda: own.call("POST", NODES.path(None, None, None), new))
    assert "cannot delete" in refusal(lambda: own.call("DELETE", NODES.path(None, "node-b", None), {}))


def test_pods_of_the_own_node_are_deleted_and_no_others(own: Api, nowhere: Api, namespace: Namespace) -> None:
    for node in ("node-a", "node-b"):
        namespace.pod(f"on-{node}", node=node)
    namespace.running("on-node-a", "on-node-b")
    namespace.pod("on-none", nodeSelector={"kubernetes.io/hostname": "node-c"})

    def delete(api: Api, pod: str) -> str:
        return refusal(lambda: api.call("DELETE", PODS.path(namespace.name, pod, None), {"gracePeriodSeconds": 1}))

    for api, pod in ((own, "on-node-b"), (own, "on-none"), (nowhere, "on-node-a"), (nowhere, "on-none")):
        assert "an agent may delete pods of its own node only" in delete(api, pod), pod
    assert delete(own, "on-node-a") == ""
    namespace.gone("on-node-a")
    assert "cannot deletecollection" in refusal(lambda: own.call("DELETE", PODS.path(namespace.name, None, None), {}))
    assert "cannot list" in refusal(lambda: own.list(PODS, namespace.name))
    assert "deletionTimestamp" not in namespace.get_pod("on-node-b")["metadata"]


@pytest.mark.parametrize(
    ("values", "allowed"),
    [((), set()), (("podEviction=delete",), {"delete"}), (CHART_VALUES, {"delete", "evict"})],
    ids=["none", "delete", "evict"],
)
def test_pods_are_moved_only_as_the_value_says(
    cluster: Cluster, own: Api, namespace: Namespace, values: tuple[str, ...], allowed: set[str]
) -> None:
    api = cluster.api.as_user(cluster.identity(DRIVER, *values).token("node-a"))
    namespace.pod("delete", node="node-a")
    namespace.pod("evict", node="node-a")
    namespace.running("delete", "evict")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evict"}}
    ways = {
        "delete": lambda: api.call("DELETE", PODS.path(namespace.name, "delete", None), {"gracePeriodSeconds": 1}),
        "evict": lambda: api.call("POST", PODS.path(namespace.name, "evict", "eviction"), eviction),
    }
    for way, call in ways.items():
        said = refusal(call)
        assert bool(said) == (way not in allowed), f"{way}: {said or 'carried out'}"
        assert said == "" or "cannot" in said
