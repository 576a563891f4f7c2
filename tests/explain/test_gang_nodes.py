"""A gang on many nodes: the time for their comparison and for the counts of devices is limited."""

from __future__ import annotations

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
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import PodSet

__all__ = ["deadline_clock"]
Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
LATE = "1 pod can be placed; the others have no result in time"


class Observed(dict[str, Any]):
    """An object that calls back when a field of it is read."""

    def __init__(self, value: Json, field: str, read: Callable[[], None]) -> None:
        super().__init__(value)
        self._field, self._read = field, read

    def get(self, key: str, default: Any = None) -> Any:
        if key == self._field:
            self._read()
        return super().get(key, default)


def node(name: str) -> Json:
    return {"metadata": {"name": name, "labels": {}}, "spec": {}}


def gang_on(nodes: list[Json], *, pods: int = 1, requests: int = 1, devices: int = 1) -> tuple[Snapshot, Gang]:
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
    return snapshot, gang


def test_the_comparison_of_nodes_ends_with_the_deadline(deadline_clock: DeadlineClock) -> None:
    compared: list[str] = []

    def observed(name: str) -> Json:
        def read() -> None:
            deadline_clock.pass_(1)
            compared.append(name)

        return Observed(node(name), "spec", read)

    pool = [observed(f"n{number:03}") for number in range(300)]
    answer = explain_gang(*gang_on(pool), deadline=10)
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
