"""The limits of `explain` of a claim in a large cluster, or with claims that need long: time, and nodes in full."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from allocator.cases import allocated_claim, claim, device, make_request, model, slice_of
from deadlines import DeadlineClock, deadline_clock
from dra_agent.cluster import Cluster, Sweep
from dra_agent.explain import search_time
from dra_cluster.explain import claim_explanation, pending
from dra_cluster.explain.claim_explanation import explain_claim, explain_pod
from dra_cluster.explain.pending import LATE, MAX_EXPLAINED_NODES, SnapshotCluster, shown_node
from dra_cluster.explain.pod_claims import PodClaim, pod_claims
from dra_cluster.explain.scheduler_version import SchedulerVersion
from dra_cluster.explain.snapshot import Snapshot

__all__ = ["deadline_clock"]

Json = dict[str, Any]
TIMEOUT = "no result within 2000 ms: there are too many combinations"


def snapshot_of(number: int, *others: Json, expression: str = model("B"), devices: int = 1) -> Snapshot:
    """Return a cluster in which a claim waits, on nodes with devices of model A."""
    names = [f"n{index:03}" for index in range(number)]
    return Snapshot(
        "default",
        slices=[
            slice_of(*(device(f"d{i}", {"model": "A"}) for i in range(devices)), name=name, pool=name, nodeName=name)
            for name in names
        ],
        classes=[{"metadata": {"name": "any"}, "spec": {}}],
        claims=[claim(make_request(expression=expression)), *others],
        nodes=[{"metadata": {"name": name}, "spec": {}} for name in names],
    )


def explained(snapshot: Snapshot, **arguments: Any) -> Json:
    return explain_claim(snapshot, snapshot.claims[0], **arguments)


@pytest.fixture
def explained_nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the nodes that the allocator explains."""
    names: list[str] = []
    explain = Cluster.explain

    def recorded(self: Cluster, node: str, *arguments: Any, **options: Any) -> Json:
        names.append(node)
        return explain(self, node, *arguments, **options)

    monkeypatch.setattr(Cluster, "explain", recorded)
    return names


@pytest.mark.parametrize("number", [1, MAX_EXPLAINED_NODES])
def test_every_node_of_a_small_cluster_is_explained(number: int, explained_nodes: list[str]) -> None:
    answer = explained(snapshot_of(number))
    assert len(explained_nodes) == number and all(entry["explanation"] for entry in answer["nodes"])
    assert answer["notes"] == [] and answer["unexamined"] == []


def test_all_nodes_of_a_large_cluster_have_a_verdict_and_some_their_devices(explained_nodes: list[str]) -> None:
    snapshot = snapshot_of(200, expression=model("A"))
    held = [allocated_claim(f"held-{index}", {"device": "d0", "pool": f"n{index:03}"}) for index in range(199)]
    snapshot.claims += held
    answer = explained(snapshot)
    assert answer["summary"].endswith(
        "its devices are free on node n199; if it stays pending, that is not about devices"
    )
    assert len(explained_nodes) == MAX_EXPLAINED_NODES and len(answer["nodes"]) == 200
    assert [entry["node"] for entry in answer["nodes"] if entry["fits"]] == ["n199"]
    with_devices = [entry["node"] for entry in answer["nodes"] if entry["explanation"]]
    assert sorted(explained_nodes) == with_devices and "n199" in with_devices, "one node of each reason"
    assert any(f"listed for {MAX_EXPLAINED_NODES} of 200 nodes" in note for note in answer["notes"])
    assert all("1 matching device" in entry["devices"] for entry in answer["nodes"][:199])
    assert len(answer["holders"]) == MAX_EXPLAINED_NODES - 1


def test_the_node_with_the_most_free_devices_of_a_large_cluster_is_shown() -> None:
    snapshot = snapshot_of(150, devices=3)
    snapshot.claims[0] = claim(make_request(count=3, expression=model("A")))
    for index in range(150):
        held = 1 if index == 140 else 2
        results = [{"device": f"d{one}", "pool": f"n{index:03}"} for one in range(held)]
        snapshot.claims.append(allocated_claim(f"held-{index}", *results))
    answer = explained(snapshot)
    shown = shown_node(answer)
    assert shown is not None and shown["node"] == "n140"
    assert "fits on none of 150 nodes; n140: request main: 3 of 3 devices match" in answer["summary"]


def test_node_of_a_large_cluster_is_explained_on_request(explained_nodes: list[str]) -> None:
    answer = explained(snapshot_of(200), node="n150")
    assert explained_nodes == ["n150"] and answer["nodes"][0]["explanation"]["node"] == "n150"
    assert answer["notes"] == []


def test_a_node_that_does_not_exist_leaves_the_others_as_they_are() -> None:
    snapshot = snapshot_of(2)
    cluster = SnapshotCluster(snapshot)
    (entry,) = explained(snapshot, node="absent", cluster=cluster)["nodes"]
    assert entry["devices"] == "no driver has published devices for it"
    assert [entry["node"] for entry in explained(snapshot, cluster=cluster)["nodes"]] == ["n000", "n001"]


class SlowAllocator:
    """Needs all of the time that it gets, on a clock that only it advances; finds no result on some nodes."""

    def __init__(self, clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch, *, late: Iterable[str] = ()) -> None:
        self._clock = clock
        self._late = set(late)
        self._lock = threading.Lock()
        self.explained: list[str] = []
        explain, fits = Cluster.explain, Cluster.fits

        def slow_fits(cluster: Cluster, claims: Any, *, nodes: list[str], deadline: float) -> Sweep:
            clock.pass_(deadline)
            found = fits(cluster, claims, nodes=[name for name in nodes if name not in self._late], deadline=3600)
            return Sweep(found.fits, found.reasons, found.errors, [name for name in nodes if name in self._late])

        def slow_explain(cluster: Cluster, node: str, claims: Any, *, deadline: float) -> Json:
            with self._lock:
                self.explained.append(node)
                # The search, the explanation, and an attempt for the claim and one for its request.
                clock.pass_(2 * deadline + 2 * search_time.ATTEMPT_S)
            found = explain(cluster, node, claims, deadline=3600)
            return {**found, "fits": False, "error": TIMEOUT} if node in self._late else found

        monkeypatch.setattr(Cluster, "fits", slow_fits)
        monkeypatch.setattr(Cluster, "explain", slow_explain)
        monkeypatch.setattr(pending, "MAX_CONCURRENCY", 1)


@pytest.mark.parametrize("number", [1, 40, 100])
@pytest.mark.parametrize("is_late", [True, False])
def test_the_deadline_is_for_all_nodes_together(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch, number: int, is_late: bool
) -> None:
    snapshot = snapshot_of(number)
    names = [node["metadata"]["name"] for node in snapshot.nodes or ()]
    slow = SlowAllocator(deadline_clock, monkeypatch, late=names if is_late else ())
    start = deadline_clock.monotonic()
    answer = explained(snapshot, deadline=10.0)
    assert deadline_clock.monotonic() - start <= 10.0
    assert slow.explained == ["n000"], "one node gets the rest of the time"
    assert answer["unexamined"] == (names if is_late else [])
    assert not answer["fits"]


def test_nodes_without_a_result_in_time_are_not_evaluated(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowAllocator(deadline_clock, monkeypatch, late=["n001", "n002"])
    answer = explained(snapshot_of(3))
    assert answer["unexamined"] == ["n001", "n002"]
    assert "fits on none of 1 node; n000: request main: none of 1 device matches" in answer["summary"]
    assert answer["summary"].endswith("; 2 nodes are not evaluated in time")
    assert [entry["devices"] for entry in answer["nodes"][1:]] == [LATE, LATE]
    assert "devices and their holders are not listed for 2 nodes: there was no time" in answer["notes"]


@pytest.mark.parametrize(("minor", "is_condition"), [(35, False), (37, True)])
def test_a_node_without_a_result_is_a_condition_of_the_verdict(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch, minor: int, is_condition: bool
) -> None:
    """From 1.36 on, a search that takes longer than kube-scheduler permits ends its attempt for all nodes."""
    SlowAllocator(deadline_clock, monkeypatch, late=["n001"])
    snapshot = snapshot_of(2, expression=model("A"))
    snapshot.scheduler = SchedulerVersion(minor, is_assumed=False)
    answer = explained(snapshot)
    condition = "node n001 is not evaluated in time: if a search of kube-scheduler 1.37 there takes more than 10 s"
    assert answer["fits"] and (condition in answer["summary"]) is is_condition


def test_a_claim_without_a_result_on_any_node_is_not_evaluated(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowAllocator(deadline_clock, monkeypatch, late=["n000"])
    answer = explained(snapshot_of(1))
    assert answer["summary"] == "is not evaluated on node n000: no result in time: there are too many combinations"
    shown = shown_node(answer)
    assert shown is not None and shown["explanation"]["claims"], "its devices are known nevertheless"


@pytest.mark.parametrize("explain", [explain_claim, explain_pod])
def test_nothing_is_evaluated_after_the_deadline(explain: Callable[..., Json], explained_nodes: list[str]) -> None:
    snapshot = snapshot_of(3)
    pod = {
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]},
    }
    snapshot.pods = [pod]
    subject = pod if explain is explain_pod else snapshot.claims[0]
    answer = explain(snapshot, subject, deadline=0)
    assert answer["summary"] == "is not evaluated on any of 3 nodes: no result in time" and not answer["fits"]
    assert explained_nodes == [] and answer["unexamined"] == ["n000", "n001", "n002"]


def test_several_claims_use_one_reading_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_of(2, claim(make_request(expression=model("A")), name="other"))
    made = []

    class CountedCluster(Cluster):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(pending, "Cluster", CountedCluster)
    cluster = SnapshotCluster(snapshot)
    answers = [explain_claim(snapshot, waiting, cluster=cluster) for waiting in snapshot.claims]
    assert ["free on" in answer["summary"] for answer in answers] == [False, True] and len(made) == 1


def test_only_the_pods_that_name_a_claim_are_compared_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def pod(name: str, status: Json | None = None, **spec: Any) -> Json:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status or {}}

    def named(claim_name: str) -> list[Json]:
        return [{"name": "gpu", "resourceClaimName": claim_name}]

    snapshot = snapshot_of(1)
    of_template = [{"name": "gpu", "resourceClaimTemplateName": "template"}]
    generated = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]}
    extended = {"extendedResourceClaimStatus": {"resourceClaimName": "claim"}}
    snapshot.groups = [{"metadata": {"name": "ring", "namespace": "default"}, "spec": {"resourceClaims": of_template}}]
    snapshot.groups[0]["status"] = generated
    snapshot.pods = [
        *(pod(f"other-{index}", resourceClaims=named(f"other-{index}")) for index in range(50)),
        pod("named", resourceClaims=named("claim")),
        pod("of-template", generated, resourceClaims=of_template),
        pod("extended", extended, containers=[]),
        pod("member", resourceClaims=of_template, schedulingGroup={"podGroupName": "ring"}),
    ]
    counts: Counter[str] = Counter()
    find = pod_claims

    def counted(found: Snapshot, pod: Json) -> list[PodClaim]:
        counts[pod["metadata"]["name"]] += 1
        return find(found, pod)

    monkeypatch.setattr(claim_explanation, "pod_claims", counted)
    users = ["named", "of-template", "extended", "member"]
    assert [entry["pod"] for entry in explained(snapshot)["pods"]] == [f"default/{name}" for name in users]
    assert set(counts) == set(users)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 10.0, 60.0])
@pytest.mark.parametrize("requests", [1, 32])
def test_search_and_explanation_of_one_node_end_in_time(seconds: float, requests: int) -> None:
    claims = [claim(*(make_request(f"r{index}") for index in range(requests)))]
    attempts_s = min(search_time.MAX_ATTEMPTS_S, search_time.ATTEMPT_S * (1 + requests))
    search = search_time.search_s(seconds, claims)
    assert search > 0 or seconds == 0
    assert 2 * search + min(attempts_s, seconds / 2) <= seconds
