"""A gang whose group requires one value of a label of nodes: every value is tried, or the result counts the others."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cases import claim, device, make_request, slice_of
from deadlines import DeadlineClock, deadline_clock
from dra_cluster.explain.gang import gang_of_pods
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.gang_placement import Outcome, Placer
from dra_cluster.explain.snapshot import Snapshot

__all__ = ["deadline_clock"]
Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
LABEL = "rack"


def gang_on(devices: list[list[int]], *, pods: int, cordoned: int | None = None) -> tuple[Snapshot, Gang]:
    """Return a cluster with racks of nodes with these numbers of devices, and a gang that needs one rack.

    The nodes of the rack `cordoned` are cordoned.
    """
    nodes: list[Json] = []
    slices: list[Json] = []
    for rack, counts in enumerate(devices):
        for number, count in enumerate(counts):
            name = f"n{rack:02}-{number}"
            metadata = {"name": name, "labels": {LABEL: f"r{rack:02}"}}
            nodes.append({"metadata": metadata, "spec": {"unschedulable": rack == cordoned}})
            if count:
                entries = (device(f"d{one}") for one in range(count))
                slices.append(slice_of(*entries, name=name, pool=name, nodeName=name))
    metadata = {"name": "one", "namespace": "default"}
    template = {"metadata": metadata, "spec": {"spec": claim(make_request())["spec"]}}
    group: Json = {"metadata": {"name": "ring", "namespace": "default"}}
    group["spec"] = {"schedulingConstraints": {"topology": [{"key": LABEL}]}}
    entry = {"name": "gpu", "resourceClaimTemplateName": "one"}
    spec = {"resourceClaims": [entry], "schedulingGroup": {"podGroupName": "ring"}}
    members = [{"metadata": {"name": f"p{number}", "namespace": "default"}, "spec": spec} for number in range(pods)]
    snapshot = Snapshot("default", slices, [CLASS], [], [template], members, [group], nodes=nodes)
    return snapshot, gang_of_pods(snapshot, "case", members, group=group)


def test_every_value_of_the_label_is_tried() -> None:
    devices = [[1]] * 40
    devices[38] = [2]
    answer = explain_gang(*gang_on(devices, pods=2), deadline=600)
    assert answer["fits"] and answer["kinds"][0]["nodes"] == {"n38-0": 2}
    devices[38] = [1]
    answer = explain_gang(*gang_on(devices, pods=2), deadline=600)
    assert not answer["fits"] and answer["failure"]["reason"]
    # The proof for all nodes together permits two pods, so every value is searched.
    assert answer["search"]["impossible"] is None and answer["search"]["complete"]


def test_the_nodes_of_the_value_are_counted() -> None:
    answer = explain_gang(*gang_on([[1, 1], [1, 1, 0], [1] * 9], pods=10), deadline=600)
    assert not answer["fits"] and answer["placed"] == 9
    assert "; p9 fits on none of 9 nodes with rack=r02; n02-0: " in answer["summary"]
    assert "of 3 values of label rack, this is the one with the most pods: r02" in answer["notes"]
    answer = explain_gang(*gang_on([[1], [0]], pods=2), deadline=600)
    assert "; p1 does not fit on nodes with rack=r00; n00-0: " in answer["summary"]


def test_a_value_without_nodes_that_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[list[str]]] = []
    run = Placer.run

    def observed(self: Placer, *arguments: Any, **others: Any) -> Outcome:
        runs.append([list(names) for names in self.nodes])
        return run(self, *arguments, **others)

    monkeypatch.setattr(Placer, "run", observed)
    answer = explain_gang(*gang_on([[0], [0], [2], [2]], pods=2, cordoned=2), deadline=600)
    assert answer["fits"] and runs == [[["n03-0"]]]
    # The first value shows why no node fits.
    answer = explain_gang(*gang_on([[0], [0], [2]], pods=2, cordoned=2), deadline=600)
    assert not answer["fits"] and answer["failure"]["node"] == "n00-0"
    answer = explain_gang(*gang_on([[2], [0]], pods=2, cordoned=0), deadline=600)
    assert answer["failure"]["reason"] == "its pod permits none of the nodes with rack=r00"


@pytest.mark.parametrize("tried", [1, 3])
def test_values_that_were_not_tried_in_time_have_no_verdict(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch, tried: int
) -> None:
    run = Placer.run

    def slow(self: Placer, *arguments: Any, **others: Any) -> Outcome:
        found = run(self, *arguments, **others)
        deadline_clock.pass_(10 / tried)
        return found

    monkeypatch.setattr(Placer, "run", slow)
    answer = explain_gang(*gang_on([[1], [1], [1], [2]], pods=2), deadline=10)
    assert not answer["fits"] and answer["failure"] is None and answer["search"] is None
    number = 4 - tried
    have = "has" if number == 1 else "have"
    late = f"{number} of 4 values of label rack {have} no result in time"
    assert answer["summary"] == f"1 of 2 pods can be placed on 1 node; {late}"
