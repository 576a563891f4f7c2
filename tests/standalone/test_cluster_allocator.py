"""The allocator of standalone mode keeps what it has read, and answers as `allocate` does."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from allocator.cases import DRIVER, device, memory, shared, slice_of
from allocator.cases import claim as make_claim
from allocator.cases import make_request as request
from allocator.question import allocate
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.store import Store

Json = dict[str, Any]
CLASS: Json = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
WAITING = 300


def waiting(name: str, count: int) -> Json:
    """Return a claim; claims of different counts have different specs, so each is tried."""
    return {"kind": "ResourceClaim", **make_claim(request(count=count), name=name)}


def test_slices_and_classes_are_read_once_for_many_claims(tmp_path: Path, preparer: Any) -> None:
    slices = [slice_of(*(device(f"gpu-{number}") for number in range(4)))]
    allocator = ClusterAllocator()
    store = Store(tmp_path)
    queue = ClaimQueue(
        store, node="n1", slices=lambda: slices, allocator=allocator, preparer=preparer, clock=time.monotonic
    )
    queue.apply([CLASS, waiting("holder", 4), *(waiting(f"c{number:03}", 5 + number) for number in range(WAITING))])
    queue.apply([waiting("small", 1)])
    queue.reconcile()
    assert queue.view("default", "small").phase == "Pending"
    queue.delete("default", "holder")
    queue.reconcile()
    assert queue.view("default", "small").phase == "Prepared"
    assert allocator.cluster is not None
    assert allocator.cluster.counts.slices_decoded == 1
    store.close()


def test_lists_are_compared_without_a_gate() -> None:
    slices = [slice_of(*({"name": name, "attributes": {"rails": {"strings": [name, "x"]}}} for name in "ab"))]
    together = make_claim(request(count=2), constraints=[{"matchAttribute": f"{DRIVER}/rails"}])
    result = ClusterAllocator().allocate(node="n1", classes=[CLASS], slices=slices, claims=[together], allocated=[])
    assert result["allocated"]


def test_random_changes_give_the_results_of_allocate() -> None:
    rng = random.Random(3)
    classes = [CLASS]
    slices = [slice_of(device("a"), device("b"), shared())]
    allocator = ClusterAllocator()
    held: list[Json] = []
    for number in range(200):
        if rng.random() < 0.1:
            slices = [slice_of(*rng.sample([device("a"), device("b"), shared()], rng.randint(1, 3)))]
        if held and rng.random() < 0.4:
            held.remove(rng.choice(held))
        amount = memory(rng.choice(["1Gi", "4Gi", "20Gi"])) if rng.random() < 0.5 else None
        fields: Json = {"capacity": amount} if amount else {}
        name = rng.choice(["any", "any", "any", "absent"])
        claim = make_claim(request(deviceClassName=name, **fields), name=f"c{number}")
        query: Json = {"node": "n1", "classes": classes, "slices": slices, "claims": [claim]}
        empty = rng.random() < 0.2
        result = allocator.allocate(**query, allocated=[] if empty else held)
        expected = allocate(**query, allocated=[] if empty else held)
        for one in (result, expected):
            for allocation in one["results"]:
                for entry in allocation["devices"]["results"]:
                    entry.pop("shareID", None)
        assert result == expected
        if result["allocated"] and not empty:
            for entry in result["results"][0]["devices"]["results"]:
                if entry["device"] == "shared":
                    entry["shareID"] = f"00000000-0000-4000-8000-{number:012d}"
            held.append({**claim, "status": {"allocation": result["results"][0]}})


def test_a_slice_that_cannot_be_read_is_an_error_until_it_is_replaced() -> None:
    allocator = ClusterAllocator()
    query: Json = {"node": "n1", "classes": [CLASS], "claims": [waiting("c", 1)], "allocated": []}
    broken = {"metadata": {"name": "s"}, "spec": {"devices": "many"}}
    for _ in range(2):
        assert "ResourceSlice s: spec.devices" in allocator.allocate(**query, slices=[broken])["error"]
    assert allocator.allocate(**query, slices=[slice_of(device("a"))])["allocated"]
