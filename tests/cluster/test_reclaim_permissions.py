"""What an agent may do to pods and its node if the chart permits evictions and cordoning, asked of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import NODES, PODS, Api, Kind
from cluster.kube.cluster import Cluster
from cluster.kube.workload import Namespace
from cluster.test_permissions import kinds_of_tokens, refusal

CHART_VALUES = ("podEviction=evict",)
POLICIES = Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False)
NOT_ITS_NODE = "an agent may change its own node only"
CONDITION = f"{DRIVER}/ReclaimNotice"
CORDON = "node.kubernetes.io/unschedulable"


@pytest.fixture
def own(cluster: Cluster) -> Api:
    """An agent of node-a, once the policies that restrict its permissions are in force."""
    identity = cluster.identity(DRIVER, *CHART_VALUES)
    api = cluster.api.as_user(identity.token("node-a"))
    identity.token("node-b")  # creates a pod on that node
    foreign = PODS.path(identity.namespace, "agent-node-b", None)

    def policy_is_in_force() -> bool:
        return NOT_ITS_NODE in refusal(lambda: api.patch(NODES, "node-b", {"spec": {"unschedulable": None}}))

    cluster.api.wait(policy_is_in_force, "the policy about nodes is in force")
    cluster.api.wait(
        lambda: refusal(lambda: api.call("DELETE", foreign, {"dryRun": ["All"]})), "the policy about pods is in force"
    )
    return api


@pytest.fixture
def tokens(cluster: Cluster, own: Api) -> dict[str, Api]:
    """Every kind of token of an agent of node-a."""
    return kinds_of_tokens(cluster, cluster.identity(DRIVER, *CHART_VALUES))


@pytest.fixture
def unbound(tokens: dict[str, Api]) -> Api:
    """The same account with a token without a node name."""
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


def test_only_the_own_node_is_cordoned_and_uncordoned(cluster: Cluster, own: Api, unbound: Api) -> None:
    for closed in (True, None):
        assert refusal(lambda closed=closed: own.patch(NODES, "node-a", {"spec": {"unschedulable": closed}})) == ""
    close = {"spec": {"unschedulable": True}}
    assert NOT_ITS_NODE in refusal(lambda: own.patch(NODES, "node-b", close))
    assert NOT_ITS_NODE in refusal(lambda: unbound.patch(NODES, "node-a", close))
    assert "unschedulable" not in cluster.api.get(NODES, "node-b")["spec"]


@pytest.mark.parametrize("who", ["pod", "bound to the node", "bound to nothing", "kubelet"])
def test_no_token_cordons_or_taints_another_node(cluster: Cluster, tokens: dict[str, Api], who: str) -> None:
    before = cluster.api.get(NODES, "node-b")["spec"]
    evicting = [{"key": "x", "effect": "NoExecute"}]
    for spec in ({"unschedulable": True}, {"taints": evicting}, {"unschedulable": True, "taints": evicting}):
        assert refusal(lambda spec=spec: tokens[who].patch(NODES, "node-b", {"spec": spec})), spec
    assert cluster.api.get(NODES, "node-b")["spec"] == before


@pytest.mark.parametrize("who", ["pod", "bound to the node", "bound to nothing", "kubelet"])
def test_no_token_evicts_pods_of_its_own_node_by_a_taint(cluster: Cluster, tokens: dict[str, Api], who: str) -> None:
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
        # It would evict every pod of the node without a toleration.
        {"spec": {"taints": [{"key": CORDON, "effect": "NoExecute"}]}},
        {"spec": {"taints": [{"key": CORDON, "effect": "NoExecute"}, {"key": CORDON, "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": CORDON, "effect": "PreferNoSchedule"}]}},
        {"spec": {"providerID": "x://y"}},
    ],
    ids=str,
)
def test_no_other_field_of_the_own_node_is_changed(tokens: dict[str, Api], who: str, change: dict[str, Any]) -> None:
    assert "whether it takes new pods" in refusal(lambda: tokens[who].patch(NODES, "node-a", change))


def test_the_cordon_taint_is_added_and_removed(cluster: Cluster, own: Api) -> None:
    kept = [one for one in cluster.api.get(NODES, "node-a")["spec"].get("taints", []) if one["key"] != CORDON]
    for taints in ([*kept, {"key": CORDON, "effect": "NoSchedule"}], kept):
        assert refusal(lambda taints=taints: own.patch(NODES, "node-a", {"spec": {"taints": taints}})) == ""


def condition_patch(*types: str) -> dict[str, Any]:
    """Return a patch that adds these conditions to a Node's status."""
    stamp = "2026-01-31T12:00:00Z"
    fields = {
        "status": "True",
        "reason": "Test",
        "message": "",
        "lastTransitionTime": stamp,
        "lastHeartbeatTime": stamp,
    }
    return {"status": {"conditions": [{"type": one, **fields} for one in types]}}


def patch_status(api: Api, node: str, change: dict[str, Any]) -> str:
    content = "application/strategic-merge-patch+json"
    return refusal(lambda: api.call("PATCH", NODES.path(None, node, "status"), change, media_type=content))


def test_only_the_reclaim_condition_of_the_own_node_is_written(cluster: Cluster, own: Api, unbound: Api) -> None:
    def conditions(node: str) -> set[str]:
        return {one["type"] for one in cluster.api.get(NODES, node)["status"]["conditions"]}

    assert patch_status(own, "node-a", condition_patch(CONDITION)) == ""
    assert CONDITION in conditions("node-a") and "Ready" in conditions("node-a")
    assert NOT_ITS_NODE in patch_status(own, "node-b", condition_patch(CONDITION))
    assert NOT_ITS_NODE in patch_status(unbound, "node-a", condition_patch(CONDITION))
    only = f"but the condition {CONDITION}"
    assert only in patch_status(own, "node-a", condition_patch("Ready"))
    assert only in patch_status(own, "node-a", condition_patch(CONDITION, "another/Condition"))
    assert only in patch_status(own, "node-a", {"status": {"capacity": {"example.com/x": "1"}}})
    assert only in patch_status(own, "node-a", {"status": {"capacity": None}})
    assert only in patch_status(own, "node-a", {"status": {"addresses": [{"type": "Hostname", "address": "x"}]}})
    assert only in patch_status(own, "node-a", {"status": {"volumesInUse": ["x/y"]}})
    assert "one condition" in patch_status(own, "node-a", {"metadata": {"labels": {"x": "y"}}})
    gone = {"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}
    assert patch_status(own, "node-a", gone) == ""
    assert CONDITION not in conditions("node-a")


def test_nodes_are_neither_created_nor_deleted(own: Api) -> None:
    new = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}}
    assert "cannot create" in refusal(lambda: own.call("POST", NODES.path(None, None, None), new))
    assert "cannot delete" in refusal(lambda: own.call("DELETE", NODES.path(None, "node-b", None), {}))


def test_only_pods_of_the_own_node_are_deleted(own: Api, unbound: Api, namespace: Namespace) -> None:
    for node in ("node-a", "node-b"):
        namespace.pod(f"on-{node}", node=node)
    namespace.running("on-node-a", "on-node-b")
    namespace.pod("on-none", nodeSelector={"kubernetes.io/hostname": "node-c"})

    def delete(api: Api, pod: str) -> str:
        return refusal(lambda: api.call("DELETE", PODS.path(namespace.name, pod, None), {"gracePeriodSeconds": 1}))

    for api, pod in ((own, "on-node-b"), (own, "on-none"), (unbound, "on-node-a"), (unbound, "on-none")):
        assert "an agent may delete pods of its own node only" in delete(api, pod), pod
    assert delete(own, "on-node-a") == ""
    namespace.wait_until_deleted("on-node-a")
    assert "cannot deletecollection" in refusal(lambda: own.call("DELETE", PODS.path(namespace.name, None, None), {}))
    assert "cannot list" in refusal(lambda: own.list(PODS, namespace.name))
    assert "deletionTimestamp" not in namespace.get_pod("on-node-b")["metadata"]


@pytest.mark.parametrize(
    ("values", "allowed"),
    [((), set()), (("podEviction=delete",), {"delete"}), (CHART_VALUES, {"delete", "evict"})],
    ids=["none", "delete", "evict"],
)
def test_pods_are_evicted_only_as_the_chart_value_permits(
    cluster: Cluster, own: Api, namespace: Namespace, values: tuple[str, ...], allowed: set[str]
) -> None:
    api = cluster.api.as_user(cluster.identity(DRIVER, *values).token("node-a"))
    namespace.pod("delete", node="node-a")
    namespace.pod("evict", node="node-a")
    namespace.running("delete", "evict")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evict"}}
    actions = {
        "delete": lambda: api.call("DELETE", PODS.path(namespace.name, "delete", None), {"gracePeriodSeconds": 1}),
        "evict": lambda: api.call("POST", PODS.path(namespace.name, "evict", "eviction"), eviction),
    }
    for action, call in actions.items():
        refused = refusal(call)
        assert bool(refused) == (action not in allowed), f"{action}: {refused or 'carried out'}"
        assert refused == "" or "cannot" in refused
