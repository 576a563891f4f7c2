"""What the page reads of a cluster: devices, reclaims and reasons; and API servers that refuse or do not respond."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim, device, make_request, model, slice_of
from deadlines import DeadlineClock, deadline_clock
from dra_agent.cli.parser import build_parser
from dra_agent.cluster import Cluster, Sweep
from dra_agent.errors import RetryableError
from dra_cluster.cli import ui_cluster
from dra_cluster.cli.ui_cluster import MAX_EXPLAINED, cluster_view, read_cluster_view
from dra_cluster.explain import pending
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.page import cluster as cluster_page
from dra_cluster.page.frame import document
from dra_cluster.page.last_known import LastRead
from eventually import DEADLINE_S
from fake_apiserver.fake import FakeApi

__all__ = ["deadline_clock"]

DRIVER = "dra-agent.internal"
NOTICE = {
    "type": f"{DRIVER}/ReclaimNotice",
    "status": "True",
    "message": "the node is reclaimed soon",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
TAINT = {"key": f"{DRIVER}/reclaim", "effect": "NoExecute", "value": "notice"}


def held_claim(name: str, node: str, device_name: str) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    found: dict[str, Any] = claim(make_request(), name=name)
    result = {"request": "gpu", "driver": "driver.example", "pool": node, "device": device_name}
    found["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}}
    return found


@pytest.fixture
def args(fake_api: FakeApi, tmp_path: Path) -> argparse.Namespace:
    path = fake_api.kubeconfig(tmp_path / "kubeconfig")
    arguments = ["ui", "--kubeconfig", str(path), "--state-dir", str(tmp_path)]
    parsed: argparse.Namespace = build_parser("ui").parse_args(arguments)
    return parsed


@pytest.fixture
def cluster(fake_api: FakeApi) -> FakeApi:
    """Two nodes: the devices of one are tainted and one of them is held; a claim waits."""
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
    fake_api.put("nodes", {"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [NOTICE]}})
    fake_api.put("nodes", {"metadata": {"name": "n2"}, "spec": {}})
    devices = [{**device(name, {"type": "gpu"}), "taints": [TAINT]} for name in ("gpu-a", "gpu-b")]
    fake_api.put("resourceslices", slice_of(*devices, name="n1", pool="n1", nodeName="n1"))
    fake_api.put("resourceslices", slice_of(device("nic-x", {"type": "nic"}), name="n2", pool="n2", nodeName="n2"))
    held = held_claim("train", "n1", "gpu-a")
    held["status"]["allocation"]["devices"]["results"][0]["driver"] = fake_api.objects("resourceslices")[0]["spec"][
        "driver"
    ]
    fake_api.put("resourceclaims", held)
    fake_api.put("resourceclaims", claim(make_request(expression=model("C")), name="late"))
    pod = {
        "metadata": {"name": "job", "namespace": "default", "uid": "uid-job"},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "g", "resourceClaimName": "late"}]},
        "status": {"phase": "Pending"},
    }
    fake_api.put("pods", pod)
    return fake_api


def test_nodes_have_devices_and_pending_claims_have_reasons(cluster: FakeApi, args: argparse.Namespace) -> None:
    view = read_cluster_view(args)
    first, second = view.nodes
    assert (first.name, first.families, first.devices, first.held, first.tainted) == ("n1", (("gpu", 2),), 2, 1, 2)
    assert (first.phase, first.message, first.claims) == ("notice", "the node is reclaimed soon", ("default/train",))
    assert (second.name, second.families, second.held, second.tainted) == ("n2", (("nic", 1),), 0, 0)
    assert second.phase == "none"
    (waiting,) = view.pending
    assert waiting.claim == "default/late" and "fits nowhere; node n1 and 1 more: an error" in waiting.reason
    assert view.pending_total == 1 and view.notes == ()
    assert {request.method for request in cluster.requests} == {"GET"}


def test_objects_that_may_not_be_read_are_named(cluster: FakeApi, args: argparse.Namespace) -> None:
    cluster.fail(403, times=None, path="/nodes")
    view = read_cluster_view(args)
    assert [node.name for node in view.nodes] == ["n1", "n2"], "from the slices"
    assert any("cannot list nodes" in note for note in view.notes)
    cluster.fail(403, times=None, path="/resourceclaims")
    assert any("cannot list resourceclaims" in note for note in read_cluster_view(args).notes)


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_an_api_server_that_hangs_ends_the_reading(
    cluster: FakeApi, args: argparse.Namespace, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_cluster, "READ_TIMEOUT_S", 0.2)
    cluster.hang(DEADLINE_S, times=None, path="/resourceslices", when=end)
    with pytest.raises(RetryableError, match="the API server did not respond within"):
        read_cluster_view(args)


def test_an_api_server_that_is_away_is_an_error(cluster: FakeApi, args: argparse.Namespace) -> None:
    cluster.stop()
    with pytest.raises(RetryableError):
        read_cluster_view(args)


def pending_claims(number: int) -> list[dict[str, Any]]:
    found = []
    for index in range(number):
        created: dict[str, Any] = claim(make_request(expression=model("C")), name=f"claim-{index:04}")
        created["metadata"]["creationTimestamp"] = f"2026-01-01T00:{index // 60:02}:{index % 60:02}Z"
        found.append(created)
    return found


def test_a_thousand_nodes_and_many_pending_claims_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"node-{number:04}" for number in range(1000)]
    slices = [
        slice_of(*(device(f"gpu-{index}", {"type": "gpu"}) for index in range(8)), name=name, pool=name, nodeName=name)
        for name in names
    ]
    driver = slices[0]["spec"]["driver"]
    held = []
    for name in names:
        held.append(held_claim(f"train-{name}", name, "gpu-0"))
        held[-1]["status"]["allocation"]["devices"]["results"][0]["driver"] = driver
    snapshot = Snapshot(
        "",
        slices=slices,
        classes=[{"metadata": {"name": "any"}, "spec": {}}],
        claims=[*held, *reversed(pending_claims(100))],
        nodes=[{"metadata": {"name": name}, "spec": {}} for name in names],
    )
    monkeypatch.setattr(ui_cluster, "EXPLAIN_BUDGET_S", 0)
    view = cluster_view(snapshot, {"default": snapshot})
    assert len(view.nodes) == 1000 and sum(node.held for node in view.nodes) == 1000
    assert (view.pending_total, len(view.pending)) == (100, MAX_EXPLAINED)
    assert view.pending[0].claim == "default/claim-0000", "the oldest first"
    assert view.pending[0].reason.startswith("not evaluated")
    page = document("c", *cluster_page.content(LastRead(view, 0.0, None, None), 1), active="cluster", has_cluster=True)
    assert len(page) < 60_000


def small_snapshot(claims: int) -> Snapshot:
    names = [f"node-{number}" for number in range(3)]
    return Snapshot(
        "default",
        slices=[slice_of(device("gpu-0", {"model": "A"}), name=name, pool=name, nodeName=name) for name in names],
        classes=[{"metadata": {"name": "any"}, "spec": {}}],
        claims=pending_claims(claims),
        nodes=[{"metadata": {"name": name}, "spec": {}} for name in names],
    )


def test_the_cluster_is_read_once_for_all_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class CountedCluster(Cluster):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(pending, "Cluster", CountedCluster)
    snapshot = small_snapshot(5)
    view = cluster_view(snapshot, {"default": snapshot})
    assert all("fits on none of 3 nodes" in waiting.reason for waiting in view.pending) and len(view.pending) == 5
    assert len(made) == 1


def test_claims_that_need_long_share_one_deadline(
    deadline_clock: DeadlineClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_fits(_: Cluster, claims: Any, *, nodes: list[str], deadline: float) -> Sweep:
        deadline_clock.pass_(deadline)
        return Sweep([], {}, {}, nodes)

    def slow_explain(_: Cluster, node: str, claims: Any, *, deadline: float) -> dict[str, Any]:
        deadline_clock.pass_(2 * deadline)
        pools = [{"driver": "d", "pool": "p", "devices": 1, "problem": None}]
        return {
            "node": node,
            "fits": False,
            "error": "no result within 5 ms",
            "fatal": True,
            "pools": pools,
            "claims": [],
        }

    monkeypatch.setattr(Cluster, "fits", slow_fits)
    monkeypatch.setattr(Cluster, "explain", slow_explain)
    monkeypatch.setattr(pending, "MAX_CONCURRENCY", 1)
    snapshot = small_snapshot(MAX_EXPLAINED)
    start = deadline_clock.monotonic()
    view = cluster_view(snapshot, {"default": snapshot})
    assert deadline_clock.monotonic() - start <= ui_cluster.EXPLAIN_BUDGET_S
    assert len(view.pending) == MAX_EXPLAINED
    assert all("is not evaluated on any of 3 nodes" in waiting.reason for waiting in view.pending), "each had its share"


def test_a_thousand_nodes_are_read_with_few_requests(
    fake_api: FakeApi, args: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_cluster, "EXPLAIN_BUDGET_S", 0)
    fake_api.put("namespaces", {"metadata": {"name": "default"}})
    fake_api.put("deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
    for number in range(1000):
        name = f"node-{number:04}"
        fake_api.put("nodes", {"metadata": {"name": name}, "spec": {}})
        entry = slice_of(device("gpu-0", {"type": "gpu"}), name=name, pool=name, nodeName=name)
        fake_api.put("resourceslices", entry)
        held = held_claim(f"train-{name}", name, "gpu-0")
        held["status"]["allocation"]["devices"]["results"][0]["driver"] = entry["spec"]["driver"]
        fake_api.put("resourceclaims", held)
    for waiting in pending_claims(30):
        fake_api.put("resourceclaims", waiting)
    view = read_cluster_view(args)
    assert (len(view.nodes), sum(node.held for node in view.nodes), view.pending_total) == (1000, 1000, 30)
    # Pages of 500 objects: nodes, slices and claims; classes, taint rules, the version, the objects of one namespace.
    assert len(fake_api.requests) <= 2 + 2 + 3 + 3 + 4
    # Each page of the view has the size of its own nodes, wherever it is.
    sizes = {
        len(document("c", *cluster_page.content(LastRead(view, 0.0, None, None), page), active="", has_cluster=True))
        for page in (1, 10, 20)
    }
    assert max(sizes) < 60_000
