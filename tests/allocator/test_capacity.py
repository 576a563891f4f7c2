"""The capacity of a cluster equals placing copies one after another with `allocate` and `hold`."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_request, model, slice_of
from allocator.question import has_names, node_name
from allocator.random_pools import NODES
from allocator.scenarios import scenario
from dra_agent.cluster import Capacity, Cluster, NodeCapacity
from dra_agent.errors import PermanentError

Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
LIMIT = 12
SEEDS_PER_TEST = 40


def on_node(node: str, *devices: Json, **spec: Any) -> Json:
    return slice_of(*devices, name=f"{node}-gpu", pool=f"{node}-gpu", nodeName=node, **spec)


def placed(cluster: Cluster, node: str, claims: list[Json], start: int, shared: list[Json]) -> int:
    """Allocate and hold copies until one does not fit; return how many. Shared claims get their allocation."""
    for count in range(LIMIT):
        copies = []
        for index, entry in enumerate(copy.deepcopy(claims)):
            uid = f"copy-{start}-{count}-{index}"
            copies.append({**entry, "metadata": {"name": uid, "namespace": "default", "uid": uid}})
        result = cluster.allocate(node, [*shared, *copies])
        if not result["allocated"]:
            return count
        for entry, found in zip([*shared, *copies], result["results"], strict=True):
            entry.setdefault("status", {"allocation": found})
        cluster.hold([*shared, *copies])
    return LIMIT


def expected(query: Json, shared: list[Json]) -> tuple[dict[str, int], int]:
    """Return the copies of each node and the total, by placing them in fresh clusters."""
    claims = query["claims"]
    alone = {node: placed(cluster_of(query), node, claims, 0, copy.deepcopy(shared)) for node in NODES}
    together, common = cluster_of(query), copy.deepcopy(shared)
    order = sorted(NODES, key=lambda node: (-alone[node], node))
    return alone, sum(placed(together, node, claims, number, common) for number, node in enumerate(order))


def cluster_of(query: Json) -> Cluster:
    own = node_name(query["node"])
    nodes = [query["node"]] if isinstance(query["node"], dict) else [{"metadata": {"name": own}}]
    nodes += [{"metadata": {"name": name, "labels": {"zone": "b"}}} for name in NODES if name != own]
    return Cluster(query["slices"], query["classes"], nodes=nodes, claims=query.get("allocated") or ())


@pytest.mark.parametrize("block", range(8))
def test_random_clusters_have_the_capacity_that_one_copy_after_another_reaches(block: int) -> None:
    several = 0
    for seed in range(7000 + block * SEEDS_PER_TEST, 7000 + (block + 1) * SEEDS_PER_TEST):
        query = scenario(seed)
        if not has_names(query):
            continue
        query["claims"] = [entry for entry in query["claims"] if not (entry.get("status") or {}).get("allocation")]
        if not query["claims"]:
            continue
        shared: list[Json] = []
        if len(query["claims"]) > 1 and seed % 2:
            shared = [{"metadata": {"name": "common", "uid": "common"}, "spec": query["claims"].pop()["spec"]}]
        alone, total = expected(query, shared)
        cluster = cluster_of(query)
        before = cluster.counts
        found = cluster.capacity(query["claims"], shared=shared, limit=LIMIT)
        assert ({entry.node: entry.copies for entry in found.nodes}, found.total) == (alone, total), seed
        assert found.unexamined == []
        assert all(entry.at_limit or (entry.reason and entry.causes) for entry in found.nodes), seed
        after = cluster.counts
        assert (before.held, before.slices) == (after.held, after.slices)
        assert cluster.capacity(query["claims"], shared=shared, limit=LIMIT) == found, seed
        several += total > 1
    assert several


def entry_of(found: Capacity, node: str) -> NodeCapacity:
    return next(entry for entry in found.nodes if entry.node == node)


def test_each_node_has_the_cause_that_limits_it() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    numa = [device(f"d{index}", {"numa": index}) for index in range(4)]
    slices = [
        on_node("free", *(device(f"d{index}") for index in range(5))),
        on_node("used", *(device(f"d{index}") for index in range(4))),
        on_node("tainted", *(device(f"d{index}", taints=[taint]) for index in range(4))),
        on_node("small", device("a")),
        on_node("apart", *numa),
    ]
    nodes = [{"metadata": {"name": name}} for name in ("free", "used", "tainted", "small", "apart", "empty")]
    held = [allocated_claim(f"h{index}", {"pool": "used-gpu", "device": f"d{index}"}) for index in range(3)]
    cluster = Cluster(slices, [CLASS], nodes=nodes, claims=held)
    found = cluster.capacity([claim(make_request(count=2))])
    assert {entry.node: (entry.copies, entry.causes) for entry in found.nodes} == {
        "apart": (2, ["placed"]),
        "empty": (0, ["no_devices"]),
        "free": (2, ["placed"]),
        "small": (0, ["too_few"]),
        "tainted": (0, ["taint"]),
        "used": (0, ["in_use"]),
    }
    assert (found.total, found.total_is_partial, found.unexamined) == (4, False, [])
    assert entry_of(found, "free").reason == (
        "claim default/claim, request main needs 2 of 5 matching devices, 1 is available: 4 used by these copies"
    )
    aligned = claim(make_request(count=2), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    alone = entry_of(cluster.capacity([aligned], nodes=["apart"]), "apart")
    assert (alone.copies, alone.causes) == (0, ["constraint"])
    assert f"same {DRIVER}/numa" in alone.reason
    none = cluster.capacity([claim(make_request(expression=model("A")), make_request("b"))], nodes=["free"])
    assert entry_of(none, "free").causes == ["error"]
    assert cluster.capacity([claim(make_request(count=2))], ignore_held=True).total == 6


def test_devices_that_several_nodes_can_use_count_once_in_the_total() -> None:
    network = slice_of(*(device(f"d{index}") for index in range(3)), name="net", pool="net", allNodes=True)
    cluster = Cluster([network], [CLASS], nodes=[{"metadata": {"name": name}} for name in ("n1", "n2", "n3")])
    found = cluster.capacity([claim(make_request())])
    assert [entry.copies for entry in found.nodes] == [3, 3, 3]
    assert all(entry.has_network_devices for entry in found.nodes)
    assert found.total == 3


def test_copies_can_use_one_claim_together() -> None:
    slices = [on_node(node, *(device(f"d{index}") for index in range(count))) for node, count in (("n1", 2), ("n2", 4))]
    cluster = Cluster(slices, [CLASS])
    common = claim(make_request(), name="common")
    found = cluster.capacity([claim(make_request())], shared=[common])
    assert [entry.copies for entry in found.nodes] == [1, 3]
    # The claim is local to the node of the first copy, so the other node has none.
    assert found.total == 3
    only = cluster.capacity([], shared=[common], limit=7)
    assert [(entry.copies, entry.at_limit) for entry in only.nodes] == [(7, True), (7, True)]
    assert only.total_is_partial
    held = {**common, "status": {"allocation": cluster.allocate("n1", [common])["results"][0]}}
    cluster.hold([held])
    found = cluster.capacity([claim(make_request())], shared=[held])
    assert [entry.copies for entry in found.nodes] == [1, 0]
    assert found.nodes[1].causes == ["allocated_elsewhere"]
    assert found.total == 1


def test_shares_of_a_device_are_limited_by_its_capacity() -> None:
    cluster = Cluster(
        [on_node("n1", device("d", allowMultipleAllocations=True, capacity={"memory": {"value": "4Gi"}}))], [CLASS]
    )
    share = make_request(capacity={"requests": {"memory": "1Gi"}})
    found = cluster.capacity([claim(share)])
    assert (found.nodes[0].copies, found.nodes[0].causes) == (4, ["capacity"])
    endless = Cluster([on_node("n1", device("d", allowMultipleAllocations=True))], [CLASS]).capacity(
        [claim(make_request())], limit=50
    )
    assert (endless.nodes[0].copies, endless.nodes[0].at_limit, endless.total_is_partial) == (50, True, True)


def test_a_share_that_all_copies_use_counts_once() -> None:
    cluster = Cluster(
        [on_node("n1", device("d", allowMultipleAllocations=True, capacity={"memory": {"value": "4Gi"}}))], [CLASS]
    )
    share = make_request(capacity={"requests": {"memory": "1Gi"}})
    found = cluster.capacity([claim(share, name="own")], shared=[claim(share, name="common")])
    assert (found.nodes[0].copies, found.total) == (3, 3)


def test_a_copy_cannot_have_an_allocation_already() -> None:
    held = allocated_claim("held", {"pool": "n1-gpu", "device": "a"})
    with pytest.raises(PermanentError, match=r"status\.allocation: must not be set"):
        Cluster([on_node("n1", device("a"))], [CLASS]).capacity([held])


def test_hostile_pools_end_at_the_deadline_and_leave_the_other_nodes_their_result() -> None:
    order = 18
    hard = [
        device(f"d{row}-{column}", {"row": row, "column": column, "sum": (row + column) % order})
        for row in range(order)
        for column in range(order)
    ]
    slices = [slice_of(*hard[i : i + 128], name=f"h{i}", pool=f"h{i}", nodeName="hard") for i in range(0, 324, 128)]
    cluster = Cluster([*slices, *(on_node(f"n{index}", device("a")) for index in range(20))], [CLASS])
    constraints = [{"distinctAttribute": f"{DRIVER}/{name}"} for name in ("row", "column", "sum")]
    found = cluster.capacity([claim(make_request("all", order), constraints=constraints)], deadline=2.0)
    assert found.unexamined == ["hard"] and found.total_is_partial
    assert [entry.causes for entry in found.nodes if entry.node != "hard"] == [["constraint"]] * 20


def test_an_incomplete_pool_and_an_old_generation_add_no_copies() -> None:
    old = slice_of(device("old"), name="old", pool="p", nodeName="n1")
    new = slice_of(device("a"), device("b"), name="new", pool="p", nodeName="n1")
    new["spec"]["pool"]["generation"] = 2
    part = slice_of(device("x"), name="part", pool="q", count=2, nodeName="n1")
    found = Cluster([old, new, part], [CLASS]).capacity([claim(make_request())])
    assert found.total == 2
    assert found.nodes[0].causes == ["placed", "pool"]
    assert "pool gpu.example.com/q is incomplete: 1 of 2 slices are published" in found.nodes[0].reason
