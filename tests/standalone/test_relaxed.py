"""After a release, one query with a relaxed spec answers for many waiting claims, and changes no result."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim as make_claim
from allocator.cases import device, model, slice_of
from allocator.cases import make_request as request
from dra_agent.allocator import allocate
from dra_agent.errors import PermanentError
from dra_agent.standalone import waiting as waiting_module
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.relaxed import relaxed
from dra_agent.standalone.store import Store
from dra_agent.standalone.waiting import Refusal, WaitingClaims, digest_of

Json = dict[str, Any]
QUERIES = Path(__file__).resolve().parents[1] / "allocator"
CLASS: Json = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
SLICES = [slice_of(*(device(f"{name}-{number}", {"model": name}) for name in "AB" for number in range(3)))]


class RecordingAllocator(ClusterAllocator):
    """Counts queries."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = 0
        self.before: Callable[[], object] = lambda: None

    def allocate(self, **question: Any) -> Json:
        self.queries += 1
        self.before()
        return super().allocate(**question)


def waits(name: str, count: int = 1, of: str = "", **fields: Any) -> Json:
    """Return a claim with a spec that no other claim has: its request has the name of the claim."""
    return {"kind": "ResourceClaim", **make_claim(request(name, count, model(of) if of else None), name=name, **fields)}


@pytest.fixture
def allocator() -> RecordingAllocator:
    return RecordingAllocator()


NewQueue = Callable[..., ClaimQueue]


@pytest.fixture
def new_queue(tmp_path: Path, preparer: Any) -> Iterator[NewQueue]:
    """Make a queue with a new store and the class."""
    stores: list[Store] = []

    def make(allocator: ClusterAllocator, clock: Callable[[], float] = time.monotonic) -> ClaimQueue:
        directory = tmp_path / str(len(stores))
        directory.mkdir()
        stores.append(Store(directory))
        queue = ClaimQueue(
            stores[-1], node="n1", slices=lambda: SLICES, allocator=allocator, preparer=preparer, clock=clock
        )
        queue.apply([CLASS])
        return queue

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def queue(new_queue: NewQueue, allocator: RecordingAllocator) -> ClaimQueue:
    return new_queue(allocator)


def prepared(queue: ClaimQueue) -> dict[str, list[str]]:
    return {view.name: [one.device for one in view.devices] for view in queue.views() if view.devices}


@pytest.mark.parametrize("file", ["corpus", "gated", "hard", "odd"])
def test_a_claim_that_fits_also_fits_with_its_relaxed_spec(file: str) -> None:
    fitting = 0
    for line in (QUERIES / f"{file}.jsonl").read_text().splitlines():
        question = json.loads(line)["question"]
        try:
            if not allocate(**question)["allocated"]:
                continue
            claims = [{**claim, "spec": relaxed(claim["spec"])} for claim in question["claims"]]
        except (PermanentError, AttributeError, TypeError):  # objects that are never stored
            continue
        fitting += 1
        assert allocate(**{**question, "claims": claims})["allocated"], line
    assert fitting


def test_a_release_costs_few_queries_for_many_claims_that_still_do_not_fit(
    queue: ClaimQueue, allocator: RecordingAllocator
) -> None:
    queue.apply([waits("holder"), waits("others", 5)])
    queue.apply([*(waits(f"c{number}", 2, "AB"[number % 2]) for number in range(200)), waits("last")])
    queue.reconcile()
    before = [view.message for view in queue.views()]
    allocator.queries = 0
    queue.delete("default", "holder")
    queue.reconcile()
    assert list(prepared(queue)) == ["others", "last"]
    assert allocator.queries <= 3
    assert [view.message for view in queue.views()] == [*before[1:-1], ""]


def test_the_oldest_claim_that_fits_is_allocated_if_the_relaxed_spec_fits(queue: ClaimQueue) -> None:
    queue.apply([waits("a", 3, "A"), waits("b", 3, "B")])
    queue.apply([waits(f"c{number}", 3, "A") for number in range(8)])
    queue.apply([waits("d", 3, "B"), waits("e", 3, "B")])
    queue.reconcile()
    queue.delete("default", "b")
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "d"]
    queue.delete("default", "a")
    queue.reconcile()
    assert list(prepared(queue)) == ["c0", "d"]


def test_a_relaxed_spec_whose_query_takes_long_is_not_tried_again(
    new_queue: NewQueue, allocator: RecordingAllocator
) -> None:
    now = [0.0]
    queue = new_queue(allocator, lambda: now[0])
    queue.apply([waits("first"), waits("second"), waits("others", 4)])
    queue.apply([waits(f"c{number}", 3) for number in range(8)])
    queue.reconcile()

    def queries_after_release(name: str) -> int:
        allocator.queries = 0
        queue.delete("default", name)
        queue.reconcile()
        return allocator.queries

    allocator.before = lambda: now.__setitem__(0, now[0] + 2)
    assert queries_after_release("first") == 1
    assert queries_after_release("second") == 8
    assert list(prepared(queue)) == ["others"]


def test_random_releases_have_the_same_results_without_relaxed_queries(
    new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    queues = [new_queue(ClusterAllocator()) for _ in range(2)]
    names: list[str] = []
    for number in range(120):
        if names and rng.random() < 0.4:
            gone = names.pop(rng.randrange(len(names)))
            added = None
        else:
            same = [{"matchAttribute": "gpu.example.com/model"}] if rng.random() < 0.3 else []
            added = waits(f"c{number}", rng.randint(1, 4), rng.choice(["A", "B", "", ""]), constraints=same)
            names.append(f"c{number}")
        for queue, least in zip(queues, (2, 10**9), strict=True):
            monkeypatch.setattr(waiting_module, "MIN_KINDRED", least)
            if added is None:
                queue.delete("default", gone)
            else:
                queue.apply([added])
            queue.reconcile()
        first, second = ([(view.name, view.phase, view.message) for view in queue.views()] for queue in queues)
        assert first == second
        assert prepared(queues[0]) == prepared(queues[1])
    assert any(phase == "Pending" for _, phase, _ in first)


def test_a_result_from_before_another_release_is_dropped() -> None:
    waiting = WaitingClaims()
    for number in range(5):
        spec = waits(f"c{number}")["spec"]
        waiting.add(f"u{number}", number, digest_of(spec), spec)
    for _, group in waiting.oldest(5):
        waiting.refuse(group, group.version, Refusal("no", "c", fits_empty_host=True))
    waiting.released()
    kindred = waiting.released_kindred()
    assert kindred is not None
    releases = kindred.releases
    waiting.released()
    waiting.keep_refusals(kindred, releases)
    assert waiting.needs_try() and waiting.refusal("u0") is None
    waiting.keep_refusals(kindred, kindred.releases)
    assert not waiting.needs_try() and waiting.refusal("u0") is not None
