"""A gang whose pods have several ResourceFlavors, on many nodes: equal nodes cost little, and the time is limited."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from allocator.cases import claim, device, make_request, slice_of
from deadlines import DeadlineClock, deadline_clock
from dra_agent.cluster import Cluster
from dra_agent.deadline import Deadline
from dra_cluster.explain.gang import gang_of_workload
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.gang_members import Gang, Member
from dra_cluster.explain.gang_placement import Placer
from dra_cluster.explain.gang_search import search
from dra_cluster.explain.kueue_flavors import Flavor, FlavorChoice
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import PodSet

__all__ = ["deadline_clock"]
Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
LATE = "1 pod can be placed; the others have no result in time"
TAINTS = [f"t{number}" for number in range(9)]


class Observed(dict[str, Any]):
    """An object that calls back when a field of it is read."""

    def __init__(self, value: Json, field: str, read: Callable[[], None]) -> None:
        super().__init__(value)
        self._field, self._read = field, read

    def get(self, key: str, default: Any = None) -> Any:
        if key == self._field:
            self._read()
        return super().get(key, default)


def node(name: str, *keys: str, **labels: str) -> Json:
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}


def gang_on(
    nodes: list[Json], flavors: FlavorChoice = (), *, pods: int = 1, requests: int = 1, devices: int = 1
) -> tuple[Snapshot, Gang]:
    """Return a cluster with devices on its first node, and a gang of equal pods."""
    first = nodes[0]["metadata"]["name"]
    metadata = {"name": "one", "namespace": "default"}
    entries = [make_request(f"r{number}") for number in range(requests)]
    template = {"metadata": metadata, "spec": {"spec": claim(*entries)["spec"]}}
    named = (device(f"d{number}") for number in range(devices))
    slices = [slice_of(*named, name=first, pool=first, nodeName=first)]
    snapshot = Snapshot("default", slices, [CLASS], templates=[template], nodes=nodes)
    pod = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}}
    gang = gang_of_workload(snapshot, "case", "case", [PodSet("", pod, pods)])
    gang.kinds[0].flavors = flavors
    return snapshot, gang


def tolerating(name: str, *keys: str) -> Flavor:
    return Flavor(name, tolerations=[{"key": key, "operator": "Exists"} for key in keys])


def test_tolerations_are_compared_once_for_equal_nodes() -> None:
    """Other labels, and a taint that no flavor tolerates, change nothing."""

    def comparisons(nodes: int) -> int:
        read: list[None] = []

        def toleration(key: str) -> Json:
            return Observed({"key": key, "operator": "Exists"}, "operator", lambda: read.append(None))

        flavors = [[Flavor(f"{group}{key}", tolerations=[toleration(key)]) for key in ("x", "y")] for group in "ab"]
        pool = [node(f"n{number}", "x", "y", host=f"n{number}") for number in range(nodes)]
        answer = explain_gang(*gang_on(pool, flavors), deadline=600)
        assert answer["fits"] and answer["kinds"][0]["usable_nodes"] == nodes
        return len(read)

    assert comparisons(300) == comparisons(1) == 4, "each flavor tolerates one of the taints"


def test_combinations_of_flavors_are_compared_once_for_equal_nodes() -> None:
    # Flavors of eight groups that tolerate one of nine taints each: of the sets that remain, none is a part of another.
    groups = [[tolerating(f"{group}-{key}", key) for key in TAINTS] for group in range(8)]

    def function_calls(nodes: int) -> int:
        pool = [node(f"n{number}", *TAINTS, f"only-{number}", host=f"n{number}") for number in range(nodes)]
        snapshot, gang = gang_on(pool, groups)
        calls = Counter[str]()
        sys.setprofile(lambda frame, event, argument: calls.update([event]))
        try:
            answer = explain_gang(snapshot, gang, deadline=600)
        finally:
            sys.setprofile(None)
        assert not answer["fits"] and "taint t0:NoSchedule" in answer["summary"]
        return calls["call"]

    # The combinations are most of the work for one node.
    assert function_calls(50) < 15 * function_calls(1)


def test_nodes_with_other_taints_have_their_own_result() -> None:
    flavors = [[tolerating("a", "x"), tolerating("b", "y")], [tolerating("c", "x"), Flavor("d", {"pool": "fast"})]]
    pool = [
        node("n0", "x", "y"),
        node("n1", "x", "y", pool="fast"),
        node("n2", "x", "y", "only"),
        node("n3", "y", "z"),
        node("n4", "x"),
        node("n5"),
    ]
    for one in pool:
        snapshot, gang = gang_on([one], flavors)
        answer = explain_gang(snapshot, gang, deadline=600)
        name = one["metadata"]["name"]
        assert answer["fits"] == (name not in ("n2", "n3")), name
    answer = explain_gang(*gang_on(pool, flavors), deadline=600)
    assert answer["kinds"][0]["usable_nodes"] == 4
    snapshot, gang = gang_on(pool[2:4], flavors)
    reason = explain_gang(snapshot, gang, deadline=600)["failure"]["reason"]
    assert reason == "the pod does not tolerate the node's taint only:NoSchedule"


def test_the_comparison_of_nodes_ends_with_the_deadline(deadline_clock: DeadlineClock) -> None:
    compared: list[str] = []

    def observed(name: str) -> Json:
        def read() -> None:
            deadline_clock.pass_(1)
            compared.append(name)

        return Observed(node(name, "x"), "spec", read)

    pool = [observed(f"n{number:03}") for number in range(300)]
    answer = explain_gang(*gang_on(pool, [[tolerating("a", "x")], [tolerating("b", "y")]]), deadline=10)
    assert len(set(compared)) <= 10
    assert not answer["fits"] and answer["failure"] is None and answer["search"] is None
    assert answer["summary"] == f"0 of {LATE}"
    left = 300 - len(set(compared))
    assert f"node n{300 - left:03} and {left - 1} more: not evaluated: no result in time" in answer["notes"]
    assert answer["kinds"][0]["usable_nodes"] == len(set(compared))


def test_nodes_that_were_compared_in_time_have_no_note(deadline_clock: DeadlineClock) -> None:
    answer = explain_gang(*gang_on([node("n0")]), deadline=10)
    assert answer["fits"] and not any("not evaluated" in note for note in answer["notes"])


def test_the_counts_of_devices_end_with_the_deadline(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each count gets what the ones before it left."""
    given: list[float] = []
    capacity = Cluster.capacity

    def counted(self: Any, *arguments: Any, deadline: float, **others: Any) -> Any:
        given.append(deadline)
        deadline_clock.pass_(3)
        return capacity(self, *arguments, deadline=600, **others)

    monkeypatch.setattr(Cluster, "capacity", counted)
    # Each request of both pods has enough devices, and all requests together do not.
    snapshot, gang = gang_on([node("n0")], pods=2, requests=6, devices=10)
    answer = explain_gang(snapshot, gang, deadline=10)
    assert given == [10, 7, 4, 1] and not answer["fits"]
    assert answer["search"]["impossible"] is None
    given.clear()
    assert explain_gang(snapshot, gang, deadline=100)["search"]["impossible"] and len(given) == 7


def test_no_order_is_made_after_the_deadline() -> None:
    """Of many kinds, each can be the first one in an order of all members."""
    made: list[None] = []

    class Members(list[Member]):
        def __iter__(self) -> Iterator[Member]:
            made.append(None)
            return super().__iter__()

    snapshot, gang = gang_on([node("n0")])
    (kind,) = gang.kinds
    gang.kinds = [replace(kind, name=f"k{number}", members=Members(kind.members)) for number in range(50)]
    gang.order = list(range(50))
    placer = Placer(Cluster(snapshot.slices or (), [CLASS]), gang, [["n0"]] * 50, Deadline(0))
    found = search(placer, gang, gang.order)
    assert found.tried == 0 and found.outcome is None
    assert len(made) <= 2 * 50, "the first order, and the next one if that was tried already"
