"""One node's token against the devices of another node: a device is driver, pool and name together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import SLICES, Api
from cluster.kube.cluster import Cluster
from cluster.test_rights import a_slice, refusal, slices, tokens
from eventually import eventually

__all__ = ["slices", "tokens"]

ACCOUNT = ["pod", "bound to the node"]
FOREIGN = "must not write slices of pool"
LATEST = 2**40
"""A generation that makes every slice of the other node's agent obsolete."""
EVICTING = [{"name": "gpu-0", "taints": [{"key": "x", "effect": "NoExecute"}]}]


def in_pool(pool: str, name: str = "test-attack", **spec: Any) -> dict[str, Any]:
    made = a_slice(name, pool, **{"nodeName": "node-a", "devices": EVICTING, **spec})
    made["spec"]["pool"]["generation"] = LATEST
    return made


@pytest.fixture
def planted(cluster: Cluster, tokens: dict[str, Api]) -> Iterator[dict[str, Any]]:
    """A slice with the attacker's node and the other node's pool, written by the administrator."""
    made = cluster.api.create(SLICES, in_pool("node-b/gpu", "test-planted", devices=[{"name": "gpu-9"}]))
    # Before the Node authorizer has seen it, it refuses a kubelet in the policy's place.
    eventually(lambda: refusal(lambda: tokens["kubelet"].get(SLICES, "test-planted")) == "")
    yield made
    cluster.api.delete(SLICES, "test-planted")


@pytest.mark.parametrize("who", [*ACCOUNT, "kubelet"])
@pytest.mark.parametrize("pool", ["node-b/gpu", "node-b", "node-a", "node-aa/gpu", "node-b/node-a/gpu", "gpu/node-a"])
def test_no_token_of_a_node_writes_a_pool_of_another(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str, pool: str
) -> None:
    assert FOREIGN in refusal(lambda: tokens[who].create(SLICES, in_pool(pool)))
    found = [one for one in cluster.api.list(SLICES) if one["spec"]["pool"]["name"] == pool]
    assert not found, "no device of another node was tainted or described"


def test_a_token_that_names_no_node_writes_no_pool(tokens: dict[str, Api], slices: dict[str, dict[str, Any]]) -> None:
    for pool in ("node-b/gpu", "node-a/gpu"):
        said = refusal(lambda pool=pool: tokens["bound to nothing"].create(SLICES, in_pool(pool)))
        assert "carries no node name" in said


@pytest.mark.parametrize("who", [*ACCOUNT, "kubelet"])
def test_a_slice_in_a_foreign_pool_is_neither_changed_nor_deleted(
    tokens: dict[str, Api], planted: dict[str, Any], who: str
) -> None:
    changed = copy.deepcopy(planted)
    changed["spec"]["devices"] = EVICTING
    assert FOREIGN in refusal(lambda: tokens[who].replace(SLICES, changed))
    if who in ACCOUNT:
        path = SLICES.path(None, "test-planted", None)
        assert FOREIGN in refusal(lambda: tokens[who].call("DELETE", path, {}))


def refused(call: Callable[[], Any]) -> bool:
    """Whether the API server refuses, be it by a policy or because such an object is not valid."""
    from cluster.kube.api import RefusedError

    try:
        call()
    except RefusedError:
        return True
    return False


@pytest.mark.parametrize("who", ACCOUNT)
def test_no_other_field_of_a_slice_reaches_another_node(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str
) -> None:
    api = tokens[who]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}
    selector = {"nodeSelectorTerms": [term]}
    own = "node-a/gpu"
    for attack in (
        in_pool(own, perDeviceNodeSelection=True, devices=[{"name": "gpu-0", "allNodes": True}]),
        in_pool(own, nodeName=None, perDeviceNodeSelection=True, devices=[{"name": "gpu-0", "allNodes": True}]),
        in_pool(own, nodeName=None, allNodes=True),
        in_pool(own, allNodes=True),
        in_pool(own, nodeSelector=selector),
        in_pool(own, nodeName=None, nodeSelector=selector),
        in_pool(own, devices=[{"name": "gpu-0", "nodeName": "node-b"}]),
        in_pool("node-b/gpu", devices=None, sharedCounters=[{"name": "c", "counters": {"m": {"value": "1"}}}]),
        in_pool(own, driver="gpu.example.com"),
    ):
        spec = {key: value for key, value in attack["spec"].items() if value is not None}
        assert refused(partial(api.create, SLICES, {**attack, "spec": spec})), spec
    # What they say of their own devices is theirs to say.
    binding = {"name": "gpu-0", "bindsToNode": True, "bindingConditions": ["x"], "bindingFailureConditions": ["y"]}
    harmless: tuple[tuple[str, dict[str, Any]], ...] = (
        ("test-own-taint", {}),
        ("test-own-counters", {"devices": None, "sharedCounters": [{"name": "c", "counters": {"m": {"value": "1"}}}]}),
        ("test-own-binding", {"devices": [binding]}),
    )
    for name, fields in harmless:
        attack = in_pool(f"node-a/{name}", name, **fields)
        spec = {key: value for key, value in attack["spec"].items() if value is not None}
        assert refusal(partial(api.create, SLICES, {**attack, "spec": spec})) == ""


@pytest.mark.parametrize("who", ACCOUNT)
def test_a_slice_moves_to_no_other_node_pool_or_driver(
    tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str
) -> None:
    changes: list[dict[str, Any]] = [
        {"nodeName": "node-b"},
        {"driver": "x.example.com"},
        {"pool": {"name": "node-b/gpu"}},
    ]
    for change in changes:
        changed = copy.deepcopy(slices["node-a"])
        changed["spec"].update({**change, "pool": {**changed["spec"]["pool"], **change.get("pool", {})}})
        assert refused(partial(tokens[who].replace, SLICES, changed)), change
        # The other way round: a slice of the other node becomes one's own.
        taken = copy.deepcopy(slices["node-b"])
        taken["spec"]["nodeName"], taken["spec"]["pool"]["name"] = "node-a", "node-a/gpu"
        assert refused(partial(tokens[who].replace, SLICES, taken))


@pytest.mark.parametrize("who", ACCOUNT)
def test_a_slice_is_owned_by_its_own_node_only(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str
) -> None:
    def owned(kind: str, name: str) -> dict[str, Any]:
        made = in_pool("node-a/gpu", f"test-owned-{who.replace(' ', '-')}")
        owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u-1", "blockOwnerDeletion": True}
        made["metadata"]["ownerReferences"] = [owner]
        return made

    for kind, name in (("Node", "node-b"), ("Namespace", "kube-system"), ("PersistentVolume", "x")):
        said = refusal(lambda kind=kind, name=name: tokens[who].create(SLICES, owned(kind, name)))
        assert "owned by its own Node" in said
    node = cluster.api.get(SLICES, "test-node-a")
    node["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "u-2"}]
    assert "owned by its own Node" in refusal(lambda: tokens[who].replace(SLICES, node))


def test_what_the_policy_leaves_to_kubernetes(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]]
) -> None:
    """A kubelet's credentials can lie about pools of drivers that have no such policy: NodeRestriction sees no pool."""
    foreign = in_pool("node-b/gpu", "test-kubelet-foreign", driver="gpu.example.com")
    assert refusal(lambda: tokens["kubelet"].create(SLICES, foreign)) == ""
    own = in_pool("node-a/gpu", "test-kubelet-own", devices=[{"name": "gpu-0"}])
    assert refusal(lambda: tokens["kubelet"].create(SLICES, own)) == ""
    # A kubelet removes the slices of drivers that have gone.
    path = SLICES.path(None, None, None) + f"?fieldSelector=spec.nodeName%3Dnode-a%2Cspec.driver%3D{DRIVER}"
    assert refusal(lambda: tokens["kubelet"].call("DELETE", path)) == ""
    assert "test-kubelet-own" not in {one["metadata"]["name"] for one in cluster.api.list(SLICES)}
