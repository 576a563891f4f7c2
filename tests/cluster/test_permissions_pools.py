"""One node's token against the devices of another node: a device is identified by driver, pool and name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cluster.kube.agent import DRIVER
from cluster.kube.api import SLICES, Api
from cluster.kube.cluster import Cluster
from cluster.test_permissions import a_slice, refusal, slices, tokens
from eventually import eventually

__all__ = ["slices", "tokens"]

ACCOUNT = ["pod", "bound to the node"]
FOREIGN = "must not write slices of pool"
LATEST = 2**40
"""A generation that makes every slice of the other node's agent obsolete."""
EVICTING_DEVICES = [{"name": "gpu-0", "taints": [{"key": "x", "effect": "NoExecute"}]}]


def in_pool(pool: str, name: str = "test-attack", **spec: Any) -> dict[str, Any]:
    created = a_slice(name, pool, **{"nodeName": "node-a", "devices": EVICTING_DEVICES, **spec})
    created["spec"]["pool"]["generation"] = LATEST
    return created


@pytest.fixture
def planted_slice(cluster: Cluster, tokens: dict[str, Api]) -> Iterator[dict[str, Any]]:
    """A slice with the attacker's node and the other node's pool, written by the administrator."""
    created = cluster.api.create(SLICES, in_pool("node-b/gpu", "test-planted", devices=[{"name": "gpu-9"}]))
    # Until the Node authorizer has observed it, it refuses a kubelet before the policy does.
    eventually(lambda: refusal(lambda: tokens["kubelet"].get(SLICES, "test-planted")) == "")
    yield created
    cluster.api.delete(SLICES, "test-planted")


@pytest.mark.parametrize("who", [*ACCOUNT, "kubelet"])
@pytest.mark.parametrize("pool", ["node-b/gpu", "node-b", "node-a", "node-aa/gpu", "node-b/node-a/gpu", "gpu/node-a"])
def test_no_token_writes_a_pool_of_another_node(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str, pool: str
) -> None:
    assert FOREIGN in refusal(lambda: tokens[who].create(SLICES, in_pool(pool)))
    found = [one for one in cluster.api.list(SLICES) if one["spec"]["pool"]["name"] == pool]
    assert not found, "no device of another node was tainted or published"


def test_a_token_without_a_node_name_writes_no_pool(tokens: dict[str, Api], slices: dict[str, dict[str, Any]]) -> None:
    for pool in ("node-b/gpu", "node-a/gpu"):
        message = refusal(lambda pool=pool: tokens["bound to nothing"].create(SLICES, in_pool(pool)))
        assert "carries no node name" in message


@pytest.mark.parametrize("who", [*ACCOUNT, "kubelet"])
def test_a_slice_in_a_foreign_pool_cannot_be_changed(
    tokens: dict[str, Api], planted_slice: dict[str, Any], who: str
) -> None:
    changed = copy.deepcopy(planted_slice)
    changed["spec"]["devices"] = EVICTING_DEVICES
    assert FOREIGN in refusal(lambda: tokens[who].replace(SLICES, changed))
    if who in ACCOUNT:
        path = SLICES.path(None, "test-planted", None)
        assert FOREIGN in refusal(lambda: tokens[who].call("DELETE", path, {}))


def is_refused(call: Callable[[], Any]) -> bool:
    """Return whether the API server refuses, by a policy or by validation."""
    from cluster.kube.api import ApiStatusError

    try:
        call()
    except ApiStatusError:
        return True
    return False


@pytest.mark.parametrize("who", ACCOUNT)
def test_no_field_of_a_slice_affects_another_node(
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
        assert is_refused(partial(api.create, SLICES, {**attack, "spec": spec})), spec
    # Taints and conditions of its own devices are allowed.
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
def test_a_slice_cannot_move_to_another_node_pool_or_driver(
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
        assert is_refused(partial(tokens[who].replace, SLICES, changed)), change
        # The reverse: a slice of the other node becomes the token's own.
        taken = copy.deepcopy(slices["node-b"])
        taken["spec"]["nodeName"], taken["spec"]["pool"]["name"] = "node-a", "node-a/gpu"
        assert is_refused(partial(tokens[who].replace, SLICES, taken))


@pytest.mark.parametrize("who", ACCOUNT)
def test_a_slice_is_owned_by_its_own_node_only(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]], who: str
) -> None:
    def owned(kind: str, name: str) -> dict[str, Any]:
        created = in_pool("node-a/gpu", f"test-owned-{who.replace(' ', '-')}")
        owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": "u-1", "blockOwnerDeletion": True}
        created["metadata"]["ownerReferences"] = [owner]
        return created

    for kind, name in (("Node", "node-b"), ("Namespace", "kube-system"), ("PersistentVolume", "x")):
        message = refusal(lambda kind=kind, name=name: tokens[who].create(SLICES, owned(kind, name)))
        assert "owned by its own Node" in message
    node = cluster.api.get(SLICES, "test-node-a")
    node["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Namespace", "name": "x", "uid": "u-2"}]
    assert "owned by its own Node" in refusal(lambda: tokens[who].replace(SLICES, node))


def test_requests_that_the_policy_does_not_cover(
    cluster: Cluster, tokens: dict[str, Api], slices: dict[str, dict[str, Any]]
) -> None:
    """A kubelet's credentials can write pools of drivers without this policy: NodeRestriction does not check pools."""
    foreign = in_pool("node-b/gpu", "test-kubelet-foreign", driver="gpu.example.com")
    assert refusal(lambda: tokens["kubelet"].create(SLICES, foreign)) == ""
    own = in_pool("node-a/gpu", "test-kubelet-own", devices=[{"name": "gpu-0"}])
    assert refusal(lambda: tokens["kubelet"].create(SLICES, own)) == ""
    # A kubelet deletes the slices of removed drivers.
    path = SLICES.path(None, None, None) + f"?fieldSelector=spec.nodeName%3Dnode-a%2Cspec.driver%3D{DRIVER}"
    assert refusal(lambda: tokens["kubelet"].call("DELETE", path)) == ""
    assert "test-kubelet-own" not in {one["metadata"]["name"] for one in cluster.api.list(SLICES)}
