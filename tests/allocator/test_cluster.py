"""A cluster answers after any changes as a new one with the same objects, and decodes each object once."""

from __future__ import annotations

import copy
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from allocator.cases import DRIVER, allocated_claim, claim, device, make_request, memory, model, shared, slice_of
from allocator.question import allocate, cluster_of, has_names, node_name
from allocator.scenarios import scenario
from dra_agent.cluster import Cluster
from dra_agent.errors import PermanentError
from dra_agent.explain import explain

Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
SEED = 5


def on_node(node: str, *devices: Json, pool: str = "gpu") -> Json:
    return slice_of(*devices, name=f"{node}-{pool}", pool=f"{node}-{pool}", nodeName=node)


class Replay:
    """The same changes to a cluster and to lists of objects, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.query = next(query for query in map(scenario, range(seed * 1000, seed * 1000 + 1000)) if has_names(query))
        self.others = [scenario(seed * 1000 + 500 + more) for more in range(40)]
        self.node = node_name(self.query["node"])
        self.slices: dict[str, Json] = {entry["metadata"]["name"]: entry for entry in self.query["slices"]}
        self.held: dict[str, Json] = {entry["metadata"]["uid"]: entry for entry in self.query["allocated"]}
        self.cluster = cluster_of(**self.query)
        self.uids = 0

    def change(self) -> None:
        """Apply one random change to both."""
        choice = self.rng.random()
        if choice < 0.3 and self.held:
            uid = self.rng.choice(list(self.held))
            assert self.cluster.release([self.held.pop(uid)]) == 1
        elif choice < 0.5:
            other = self.rng.choice(self.others)
            for entry in other["slices"]:
                name = (entry.get("metadata") or {}).get("name")
                if name and self.rng.random() < 0.5:
                    self.slices[name] = entry
                    self.cluster.update(entry)
        elif choice < 0.6 and self.slices:
            name = self.rng.choice(list(self.slices))
            del self.slices[name]
            assert self.cluster.delete(name)
        else:
            self.allocate(self.rng.choice(self.others)["claims"])

    def allocate(self, claims: list[Json]) -> None:
        """Ask both, compare, and hold what is allocated."""
        named = []
        for entry in copy.deepcopy(claims):
            self.uids += 1
            uid = f"new-{self.uids}"
            named.append({**entry, "metadata": {"name": uid, "namespace": "default", "uid": uid}})
        expected = allocate(
            node=self.query["node"],
            classes=self.query["classes"],
            slices=self.slices.values(),
            claims=named,
            allocated=self.held.values(),
            share_id_seed=SEED,
        )
        result = self.cluster.allocate(self.node, named, share_id_seed=SEED)
        assert result == expected
        sweep = self.cluster.fits(named, nodes=[self.node])
        assert (self.node in sweep.fits) == expected["allocated"]
        assert (self.node in sweep.errors) == (expected["error"] is not None)
        if result["allocated"]:
            held = [
                {**entry, "status": {"allocation": allocation}}
                for entry, allocation in zip(named, result["results"], strict=True)
            ]
            self.cluster.hold(held)
            for entry in held:
                self.held[entry["metadata"]["uid"]] = entry


@pytest.mark.parametrize("seed", range(40))
def test_random_changes_leave_a_cluster_that_answers_as_a_new_one_does(seed: int) -> None:
    replay = Replay(seed)
    for _ in range(40):
        replay.change()
    replay.allocate(replay.query["claims"])


def test_an_object_is_decoded_once_and_an_expression_compiled_once() -> None:
    count = 50
    expression = model("A")
    slices = [on_node(f"n{i}", *(device(f"d{j}", {"model": "A"}) for j in range(4))) for i in range(count)]
    cluster = Cluster(slices, [CLASS])
    waiting = [claim(make_request(count=4, expression=expression))]
    first = cluster.fits(waiting)
    assert len(first.fits) == count
    counts = cluster.counts
    assert (counts.slices, counts.slices_decoded, counts.expressions_compiled) == (count, count, 1)
    assert counts.selectors_evaluated == 4 * count
    assert cluster.fits(waiting) == first
    assert cluster.allocate("n7", waiting)["allocated"]
    assert cluster.counts == counts
    cluster.update(on_node("n7", device("d0", {"model": "B"})))
    assert cluster.fits(waiting).reasons == {
        "n7": "claim default/claim, request main: none of 1 devices matches class any and the selectors"
    }
    counts = cluster.counts
    assert (counts.slices_decoded, counts.expressions_compiled) == (count + 1, 1)
    assert counts.selectors_evaluated == 4 * count + 1


def test_a_sweep_names_why_a_claim_does_not_fit() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    slices = [
        on_node("free", device("a"), device("b")),
        on_node("used", device("a"), device("b")),
        on_node("tainted", device("a", taints=[taint]), device("b")),
        on_node("small", device("a")),
    ]
    nodes = [{"metadata": {"name": name}} for name in ("free", "used", "tainted", "small", "empty")]
    cluster = Cluster(slices, [CLASS], nodes=nodes)
    cluster.hold([allocated_claim("holder", {"pool": "used-gpu", "device": "a"})])
    sweep = cluster.fits([claim(make_request(count=2))])
    prefix = "claim default/claim, request main needs 2 of"
    assert sweep.fits == ["free"] and sweep.errors == {} and sweep.unexamined == []
    assert sweep.reasons == {
        "empty": "no devices are published for it",
        "small": f"{prefix} 1 matching devices, 1 is available",
        "tainted": f"{prefix} 2 matching devices, 1 is available: 1 with a taint that is not tolerated",
        "used": f"{prefix} 2 matching devices, 1 is available: 1 in use",
    }
    assert cluster.fits([claim(make_request(count=2))], ignore_held=True).fits == ["free", "used"]
    assert cluster.fits([claim(make_request(count=2))], nodes=["used"]).fits == []


def test_a_sweep_reports_errors_of_the_scheduler() -> None:
    cluster = Cluster([on_node("n1", device("a"))], [CLASS])
    sweep = cluster.fits([claim(make_request(deviceClassName="absent"))])
    assert sweep.errors == {"n1": 'claim default/claim, request main: the device class "absent" does not exist'}


def test_a_selector_that_fails_on_a_device_in_use_is_a_reason() -> None:
    """The search does not evaluate selectors on a device in use, so kube-scheduler reports no error."""
    cluster = Cluster([on_node("n1", device("a"))], [CLASS])
    cluster.hold([allocated_claim("holder", {"pool": "n1-gpu", "device": "a"})])
    waiting = [claim(make_request(expression=model("A")))]
    assert cluster.allocate("n1", waiting)["error"] is None
    sweep = cluster.fits(waiting)
    assert sweep.errors == {}
    assert "selector 0 fails on device" in sweep.reasons["n1"]


def test_requests_that_fit_only_individually_have_a_reason() -> None:
    cluster = Cluster([on_node("n1", device("a"))], [CLASS])
    sweep = cluster.fits([claim(make_request("a"), make_request("b"))])
    assert "individually, but not in combination" in sweep.reasons["n1"]


def hard_node(node: str, order: int = 18) -> list[Json]:
    """Return devices in the addition table of an even order, which has no transversal (Euler)."""
    devices = [
        device(f"d{row}-{column}", {"row": row, "column": column, "sum": (row + column) % order})
        for row in range(order)
        for column in range(order)
    ]
    return [on_node(node, *devices[i : i + 128], pool=f"p{i}") for i in range(0, len(devices), 128)]


def test_a_sweep_beyond_the_deadline_names_what_is_not_examined() -> None:
    easy = [on_node(f"n{i}", device("a")) for i in range(20)]
    cluster = Cluster([*hard_node("hard"), *easy], [CLASS])
    constraints = [{"distinctAttribute": f"{DRIVER}/{name}"} for name in ("row", "column", "sum")]
    sweep = cluster.fits([claim(make_request("all", 18), constraints=constraints)], deadline=2.0)
    assert sweep.unexamined == ["hard"]
    assert sorted(sweep.reasons) == sorted(f"n{i}" for i in range(20))
    assert cluster.fits([claim(make_request())], deadline=0).unexamined == sorted(
        ["hard", *(f"n{i}" for i in range(20))]
    )


def test_a_cluster_explains_as_explain_does() -> None:
    slices = [on_node("n1", device("a"), device("b", {"model": "A"})), on_node("n2", device("c"))]
    holder = allocated_claim("holder", {"pool": "n1-gpu", "device": "a"})
    waiting = [claim(make_request(count=2))]
    cluster = Cluster(slices, [CLASS], claims=[holder, *waiting])
    assert cluster.counts.held == 1
    assert cluster.explain("n1", waiting) == explain("n1", [CLASS], slices, waiting, [holder])


def test_a_cluster_is_read_from_pages_of_the_api() -> None:
    def page(*items: Json) -> bytes:
        return json.dumps({"kind": "ResourceSliceList", "metadata": {}, "items": items}).encode()

    one, two, three = (on_node(f"n{i}", device("a")) for i in range(3))
    cluster = Cluster([page(one), two, page(three)], json.dumps([CLASS]).encode())
    assert cluster.fits(json.dumps(claim(make_request())).encode()).fits == ["n0", "n1", "n2"]
    assert cluster.delete("n1-gpu") and not cluster.delete("n1-gpu")
    assert cluster.fits([claim(make_request())]).fits == ["n0", "n2"]


def test_shares_of_a_released_claim_are_free_again() -> None:
    cluster = Cluster([slice_of(shared())], [CLASS])

    def share(name: str) -> Json:
        entry = claim(make_request(capacity=memory("6Gi")), name=name)
        result = cluster.allocate("n1", [entry])
        return {**entry, "status": {"allocation": result["results"][0]}} if result["allocated"] else {}

    first = share("first")
    cluster.hold([first])
    assert share("second") == {}
    cluster.hold([first])
    assert cluster.release([first, first]) == 1
    assert share("third") != {}


def test_classes_and_nodes_can_change() -> None:
    labels = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    cluster = Cluster([slice_of(device("d"), nodeSelector=labels)], nodes=[{"metadata": {"name": "n1"}}])
    waiting = [claim(make_request())]
    assert list(cluster.fits(waiting).errors) == ["n1"]
    cluster.update_class(CLASS)
    assert cluster.fits(waiting).fits == []
    cluster.update_node({"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    assert cluster.fits(waiting).fits == ["n1"]
    assert cluster.delete_class("any") and not cluster.delete_class("any")
    assert list(cluster.fits(waiting).errors) == ["n1"]
    assert cluster.delete_node("n1")
    assert cluster.counts.nodes == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda cluster: cluster.update(on_node("n9", {"name": "a", "attributes": {"m": {"int": "x"}}})),
            "ResourceSlice n9-gpu: spec.devices[0].attributes[m].int: must be a whole number, is a string",
        ),
        (lambda cluster: cluster.update({"spec": {}}), "ResourceSlice item 0: metadata.name: must be set"),
        (lambda cluster: cluster.update(b"{"), "ResourceSlice: not JSON"),
        (
            lambda cluster: cluster.update_class({"metadata": {"name": "c"}, "spec": {"selectors": 3}}),
            "DeviceClass c: spec.selectors: must be a list, is a number",
        ),
        (
            lambda cluster: cluster.hold([claim(make_request())]),
            "ResourceClaim default/claim: status.allocation: must be set",
        ),
        (
            lambda cluster: cluster.allocate("n1", [claim({"name": "r", "exactly": {"count": "1"}})]),
            "ResourceClaim claim: spec.devices.requests[0].exactly.count: must be a whole number, is a string",
        ),
        (lambda cluster: cluster.fits([], nodes=["n7"]), "node n7 is none of the 1 known nodes"),
        (lambda cluster: cluster.release([{"metadata": {}}]), "ResourceClaim item 0: metadata.uid: must be set"),
        (
            lambda cluster: Cluster([on_node("n1"), on_node("n1")]),
            "ResourceSlice n1-gpu: metadata.name: must be unique",
        ),
        (lambda cluster: cluster.hold(cast("Any", CLASS)), "put it into a list"),
    ],
)
def test_an_error_names_object_and_field(call: Any, message: str) -> None:
    cluster = Cluster([on_node("n1", device("a"))], [CLASS], nodes=[{"metadata": {"name": "n1"}}])
    before = cluster.counts
    with pytest.raises(PermanentError) as error:
        call(cluster)
    assert message in str(error.value)
    assert cluster.counts == before


def test_a_batch_with_an_invalid_object_changes_nothing() -> None:
    cluster = Cluster()
    with pytest.raises(PermanentError):
        cluster.update(json.dumps([on_node("n1", device("a")), {"spec": {"devices": 1}}]).encode())
    assert cluster.counts.slices == 0


def test_threads_see_a_consistent_state() -> None:
    """Both devices of a node are published or removed together, so a claim for one of each fits always or never."""
    cluster = Cluster([], [CLASS])
    full = [on_node(f"n{i}", device("a", {"model": "A"}), device("b", {"model": "B"})) for i in range(8)]
    pair = [claim(make_request("a", expression=model("A")), make_request("b", expression=model("B")))]
    stop = threading.Event()

    def change() -> None:
        rng = random.Random(0)
        while not stop.is_set():
            entry = rng.choice(full)
            if rng.random() < 0.5:
                cluster.update(entry)
            else:
                cluster.delete(entry["metadata"]["name"])

    def query() -> None:
        for _ in range(150):
            sweep = cluster.fits(pair, deadline=60)
            assert sweep.reasons == {} and sweep.errors == {} and sweep.unexamined == []

    with ThreadPoolExecutor(3) as threads:
        changing = threads.submit(change)
        try:
            for done in [threads.submit(query) for _ in range(2)]:
                done.result()
        finally:
            stop.set()
        changing.result()
