"""Claims that differ in their selectors are refused and tried together, and get what they would get on their own."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import DRIVER, device, memory, model, partitionable, shared, slice_of
from allocator.cases import claim as make_claim
from allocator.cases import make_request as request
from allocator.question import allocate
from dra_agent.errors import PermanentError
from dra_agent.standalone import selection as selection_module
from dra_agent.standalone import waiting as waiting_module
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.groups import Refusal, digest_of
from dra_agent.standalone.queue import ClaimQueue
from dra_agent.standalone.relaxed import relaxed
from dra_agent.standalone.selection import DeviceSelection
from dra_agent.standalone.store import Store
from dra_agent.standalone.waiting import WaitingClaims

Json = dict[str, Any]
QUERIES = Path(__file__).resolve().parents[1] / "allocator"
CLASS: Json = {"kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
SLICES = [
    slice_of(
        *(device(f"{name}-{number}", {"model": name, "number": number}) for name in "AB" for number in range(3)),
        shared("10Gi"),
    )
]
NUMBER = f'device.attributes["{DRIVER}"].number'
IS_MODEL = f'"model" in device.attributes["{DRIVER}"]'


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
    """Return a claim with a selector that no other claim has, for devices of a model, or of any."""
    chosen = model(of) if of else IS_MODEL
    selector = f'{IS_MODEL} && {chosen} && "{name}" != ""'
    return {"kind": "ResourceClaim", **make_claim(request("r", count, selector), name=name, **fields)}


@pytest.fixture
def allocator() -> RecordingAllocator:
    return RecordingAllocator()


NewQueue = Callable[..., ClaimQueue]


@pytest.fixture
def new_queue(tmp_path: Path, preparer: Any) -> Iterator[NewQueue]:
    """Make a queue with a new store and the class."""
    stores: list[Store] = []

    def make(
        allocator: ClusterAllocator,
        slices: Callable[[], list[Json]] = lambda: SLICES,
        clock: Callable[[], float] = time.monotonic,
    ) -> ClaimQueue:
        directory = tmp_path / str(len(stores))
        directory.mkdir()
        stores.append(Store(directory))
        queue = ClaimQueue(stores[-1], node="n1", slices=slices, allocator=allocator, preparer=preparer, clock=clock)
        queue.apply([CLASS])
        return queue

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def queue(new_queue: NewQueue, allocator: RecordingAllocator) -> ClaimQueue:
    return new_queue(allocator)


@pytest.fixture
def classified(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """The results of all queries for the devices of a spec."""
    found: list[bytes | None] = []
    key_of = DeviceSelection.key_of

    def recorded(selection: DeviceSelection, *arguments: Any, **named: Any) -> bytes | None:
        found.append(key_of(selection, *arguments, **named))
        return found[-1]

    monkeypatch.setattr(DeviceSelection, "key_of", recorded)
    return found


def prepared(queue: ClaimQueue) -> dict[str, list[str]]:
    return {view.name: [one.device for one in view.devices] for view in queue.views() if view.devices}


def key(*requests: Json, slices: list[Json] = SLICES, **devices: Any) -> bytes | None:
    return DeviceSelection().key_of(make_claim(*requests, **devices)["spec"], [CLASS], slices)


def test_selectors_that_choose_the_same_devices_make_equal_keys() -> None:
    text = f"{IS_MODEL} && {model('A')}"
    one = key(request(expression=text))
    assert one is not None
    assert key(request(expression=f"{text} || {text} && {NUMBER} == 1")) == one
    assert key(request(expression=text), config=[{"opaque": {"driver": "d", "parameters": {}}}]) == one
    assert key(request(expression="false")) == key(request(expression=f"{IS_MODEL} && {NUMBER} == 7")) is not None


@pytest.mark.parametrize(
    "other",
    [
        make_claim(request(expression=model("B"))),
        make_claim(request(expression=model("A"), count=2)),
        make_claim(request("other", expression=model("A"))),
        make_claim(request(expression=model("A")), constraints=[{"matchAttribute": f"{DRIVER}/number"}]),
        make_claim(request(expression=model("A"), allocationMode="All")),
        make_claim(request(expression=model("A"), capacity=memory("1Gi"))),
        make_claim(request(expression=model("A"), tolerations=[{"operator": "Exists"}])),
        make_claim(request(expression=model("A"), adminAccess=True)),
        make_claim(request(expression=model("A")), request("second", expression=model("A"))),
    ],
)
def test_anything_else_that_differs_makes_another_key(other: Json) -> None:
    slices = [slice_of(*(device(f"{name}-{number}", {"model": name}) for name in "AB" for number in range(3)))]
    one = key(request(expression=model("A")), slices=slices)
    found = DeviceSelection().key_of(other["spec"], [CLASS], slices)
    assert one is not None and found is not None and found != one


def test_a_class_has_a_part_in_the_choice() -> None:
    only_a = {**CLASS, "metadata": {"name": "only-a"}, "spec": {"selectors": [{"cel": {"expression": model("A")}}]}}
    slices = [slice_of(*(device(f"{name}-{number}", {"model": name}) for name in "AB" for number in range(3)))]
    specs = [
        make_claim(request(deviceClassName="only-a", expression=text))["spec"] for text in ("true", model("A"), "false")
    ]
    all_of_a, same, none = (DeviceSelection().key_of(spec, [CLASS, only_a], slices) for spec in specs)
    assert all_of_a == same != none


def test_alternatives_are_compared_one_by_one() -> None:
    def either(first: str, second: str) -> Json:
        choices = [
            {"name": name, "deviceClassName": "any", "selectors": [{"cel": {"expression": text}}]}
            for name, text in (("a", first), ("b", second))
        ]
        return {"name": "r", "firstAvailable": choices}

    a, b = f"{IS_MODEL} && {model('A')}", f"{IS_MODEL} && {model('B')}"
    assert key(either(a, b)) == key(either(f"{a} && true", f"{b} && true")) is not None
    assert key(either(a, b)) != key(either(b, a))


def test_a_selector_that_fails_on_a_device_has_no_key() -> None:
    assert key(request(expression=f"{IS_MODEL} && {model('A')}")) is not None
    assert key(request(expression=model("A"))) is None, "the shared device has no model"
    assert key(request(expression=f'{IS_MODEL} && {NUMBER} == 1 || device.attributes["{DRIVER}"].absent == 1')) is None
    assert key(request(deviceClassName="absent")) is None


def test_taints_counters_and_many_devices_do_not_keep_devices_from_being_chosen() -> None:
    tainted = [{"key": "d/lost", "effect": "NoExecute"}]
    many = [device(f"gpu-{number}", {"number": number, "is": True}, taints=tainted) for number in range(80)]
    for slices in ([slice_of(*many)], partitionable(4)):
        name = "number" if len(slices) == 1 else "size"
        attribute = f'device.attributes["{DRIVER}"].{name}'
        everything, all_too, fewer = (
            key(request(expression=f"{attribute} {text}"), slices=slices) for text in (">= 0", "> -1", "> 1")
        )
        assert everything == all_too != fewer
        assert everything is not None and fewer is not None


def test_selectors_see_whether_a_device_is_shared_and_its_capacity() -> None:
    slices = [slice_of(device("whole"), shared("10Gi", default="1Gi"))]
    is_shared = key(request(expression="device.allowMultipleAllocations == true"), slices=slices)
    large = f'"{DRIVER}" in device.capacity && device.capacity["{DRIVER}"].memory.compareTo(quantity("5Gi")) > 0'
    assert is_shared == key(request(expression=large), slices=slices) is not None
    assert is_shared != key(request(expression="true"), slices=slices)


def test_the_cluster_is_built_again_after_many_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_module, "MAX_SPECS", 2)
    selection, classes = DeviceSelection(), [CLASS]
    spec = make_claim(request(expression="true"))["spec"]
    assert len({selection.key_of(spec, classes, SLICES) for _ in range(7)}) == 1


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


def test_many_claims_are_refused_by_few_queries_before_their_devices_are_known(
    queue: ClaimQueue, allocator: RecordingAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    untried: list[int] = []
    key_of = DeviceSelection.key_of

    def recorded(*arguments: Any, **named: Any) -> bytes | None:
        views = queue.views()
        untried.append(sum("not tried" in view.message for view in views))
        if len(untried) == 1:
            waiting = {view.uid for view in views if view.phase == "Pending"}
            assert all(view.fits_empty_host for view in views)
            assert not queue.is_tried(waiting), "a response still waits for what is to be known"
        return key_of(*arguments, **named)

    queue.apply([waits("a", 3, "A"), waits("b", 3, "B")])
    queue.reconcile()
    monkeypatch.setattr(DeviceSelection, "key_of", recorded)
    queue.apply([*(waits(f"c{number}", 3, "A") for number in range(200)), *(waits(f"n{n}", 3, "C") for n in range(9))])
    allocator.queries = 0
    queue.reconcile()
    assert set(untried) == {0}
    assert allocator.queries < 30
    views = queue.views()
    assert queue.is_tried([view.uid for view in views])
    assert [view.name for view in views if not view.fits_empty_host] == [f"n{number}" for number in range(9)]


def test_the_last_claims_are_the_first_with_a_known_result(queue: ClaimQueue, classified: list[bytes | None]) -> None:
    queue.apply([waits("a", 3, "A"), waits("b", 3, "B")])
    queue.reconcile()
    queue.apply([waits(f"c{number}", 3, "A") for number in range(50)])
    last = waits("last", 3, "B")
    queue.apply([last])
    queue.reconcile()
    assert classified[0] == key(*last["spec"]["devices"]["requests"])


def test_a_relaxed_spec_whose_query_takes_long_is_not_tried_again(
    new_queue: NewQueue, allocator: RecordingAllocator, classified: list[bytes | None]
) -> None:
    now = [0.0]
    queue = new_queue(allocator, clock=lambda: now[0])
    allocator.before = lambda: now.__setitem__(0, now[0] + 2)
    queue.apply([waits("a", 6), *(waits(f"c{number}", 3, "A") for number in range(200))])
    queue.reconcile()
    assert list(prepared(queue)) == ["a"]
    assert allocator.queries < 20
    assert len(classified) >= 196


def test_a_release_costs_few_queries_for_many_claims_that_still_do_not_fit(
    queue: ClaimQueue, allocator: RecordingAllocator, classified: list[bytes | None]
) -> None:
    queue.apply([waits("holder"), waits("others", 5)])
    queue.apply([*(waits(f"c{number}", 2, "AB"[number % 2]) for number in range(200)), waits("last")])
    queue.reconcile()
    assert list(prepared(queue)) == ["holder", "others"]
    assert len(classified) <= 203 and allocator.queries <= 30
    before = [view.message for view in queue.views()]
    for _ in range(2):
        allocator.queries = 0
        del classified[:]
        queue.delete("default", "holder")
        queue.reconcile()
        assert list(prepared(queue)) == ["others", "last"]
        assert allocator.queries + len(classified) <= 10
        assert [view.message for view in queue.views()] == [*before[1:-1], ""]
        queue.delete("default", "last")
        queue.apply([waits("holder")])
        queue.reconcile()
        queue.apply([waits("last")])
        queue.reconcile()


def test_a_few_claims_cost_no_query_for_their_devices(queue: ClaimQueue, classified: list[bytes | None]) -> None:
    queue.apply([waits("a", 6), waits("b"), waits("c")])
    queue.reconcile()
    assert list(prepared(queue)) == ["a"]
    assert classified == []


def test_the_oldest_claim_that_fits_is_allocated(queue: ClaimQueue) -> None:
    queue.apply([waits("a", 3, "A"), waits("b", 3, "B")])
    queue.apply([waits(f"c{number}", 3, "A") for number in range(8)])
    queue.apply([waits("d", 3, "B"), waits("e", 3, "B"), waits("one")])
    queue.reconcile()
    queue.delete("default", "b")
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "d"]
    queue.delete("default", "a")
    queue.reconcile()
    assert list(prepared(queue)) == ["c0", "d"]
    queue.delete("default", "c0")
    queue.reconcile()
    assert list(prepared(queue)) == ["c1", "d"]


def test_a_class_that_changes_chooses_other_devices(queue: ClaimQueue) -> None:
    queue.apply([waits("a", 3, "A"), *(waits(f"c{number}", 3, "A") for number in range(8))])
    queue.apply([waits(f"d{number}", 4, "B") for number in range(2)])
    queue.reconcile()
    assert list(prepared(queue)) == ["a"]
    nothing = {**CLASS, "spec": {"selectors": [{"cel": {"expression": "false"}}]}}
    queue.apply([nothing])
    queue.delete("default", "a")
    queue.reconcile()
    assert prepared(queue) == {}
    assert {view.message for view in queue.views()} == {
        "no devices of this host can satisfy it, even if nothing else were claimed"
    }
    queue.apply([CLASS])
    queue.reconcile()
    assert list(prepared(queue)) == ["c0"]


def test_devices_that_change_are_chosen_by_other_claims(new_queue: NewQueue, allocator: RecordingAllocator) -> None:
    slices = [slice_of(device("a", {"model": "A"}), device("b", {"model": "B"}))]
    queue = new_queue(allocator, lambda: slices)
    queue.apply([waits("a", 1, "A"), waits("b", 1, "B")])
    queue.apply([waits(f"{of}{number}", 1, of.upper()) for number in range(4) for of in "ab"])
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "b"]
    slices = [slice_of(device("a", {"model": "A"}), device("b", {"model": "A"}))]
    queue.devices_changed()
    queue.delete("default", "b")
    queue.reconcile()
    assert prepared(queue) == {"a": ["a"], "a0": ["b"]}
    never = {view.name for view in queue.views() if view.message.startswith("no devices of this host")}
    assert never == {"b0", "b1", "b2", "b3"}


@pytest.fixture
def no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue never has the time to find out which devices the claims choose that were refused for their form."""
    monkeypatch.setattr(WaitingClaims, "unclassified", lambda waiting, limit: [])


@pytest.mark.usefixtures("no_idle_time")
def test_claims_whose_devices_are_not_known_are_refused_together_after_a_release(
    queue: ClaimQueue, allocator: RecordingAllocator, classified: list[bytes | None]
) -> None:
    queue.apply([waits("holder"), waits("others", 5)])
    queue.apply([*(waits(f"c{number}", 3, "AB"[number % 2]) for number in range(200)), waits("last")])
    queue.reconcile()
    assert list(prepared(queue)) == ["holder", "others"]
    before = [view.message for view in queue.views()]
    known = len(classified)
    allocator.queries = 0
    meanwhile: list[str] = []
    allocator.before = lambda: meanwhile.append(queue.view("default", "c9").message)
    queue.delete("default", "holder")
    queue.reconcile()
    assert list(prepared(queue)) == ["others", "last"]
    assert len(classified) - known <= 1 and allocator.queries <= 4
    assert meanwhile[0] == "is not tried yet: 9 claims are before it" and meanwhile[-1] == before[11]
    assert [view.message for view in queue.views()] == [*before[1:-1], ""]


def test_a_request_does_not_wait_until_the_devices_of_all_claims_are_known(
    queue: ClaimQueue, classified: list[bytes | None]
) -> None:
    queue.apply([waits("holder", 6), *(waits(f"c{number}", 6) for number in range(200))])
    assert queue.reconcile(is_requested=lambda: len(classified) > 20) == 0.0
    assert list(prepared(queue)) == ["holder"]
    assert {view.message for view in queue.views()[1:]} == {"waits for devices that other claims hold"}
    assert 20 < len(classified) < 40
    queue.delete("default", "holder")
    assert queue.reconcile(is_requested=lambda: True) == 0.0
    assert list(prepared(queue)) == ["c0"], "what can be allocated is not deferred"
    while queue.reconcile() == 0.0:
        pass
    assert queue.is_tried([view.uid for view in queue.views()])


@pytest.mark.usefixtures("no_idle_time")
def test_claims_that_are_refused_for_their_form_are_tried_in_their_order_after_a_release(queue: ClaimQueue) -> None:
    queue.apply([waits("a", 3, "A"), waits("b", 3, "B")])
    for number in range(6):
        queue.apply([waits(f"three{number}", 3, "A"), waits(f"two{number}", 2, "B")])
    queue.apply([waits(f"one{number}", 1, "AB"[number % 2]) for number in range(6)])
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "b"]
    queue.delete("default", "b")
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "two0", "one1"]
    queue.delete("default", "a")
    queue.reconcile()
    assert list(prepared(queue)) == ["three0", "two0", "one1"]
    queue.delete("default", "two0")
    queue.delete("default", "three0")
    queue.reconcile()
    assert list(prepared(queue)) == ["three1", "two1", "one1"]


@pytest.mark.usefixtures("no_idle_time")
def test_a_claim_that_is_released_waits_in_its_place_before_those_refused_for_their_form(queue: ClaimQueue) -> None:
    queue.apply([waits("a", 3, "A"), waits("b", 3, "B"), *(waits(f"c{number}", 3, "A") for number in range(8))])
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "b"]
    queue.suspend("the node is reclaimed", release=True)
    queue.reconcile()
    assert prepared(queue) == {}
    queue.resume()
    queue.reconcile()
    assert list(prepared(queue)) == ["a", "b"]


@pytest.mark.usefixtures("no_idle_time")
def test_claims_refused_for_their_form_can_be_deleted(queue: ClaimQueue) -> None:
    queue.apply([waits("holder", 6), *(waits(f"c{number}", 6) for number in range(8))])
    queue.reconcile()
    for number in range(7):
        queue.delete("default", f"c{number}")
        queue.reconcile()
    assert [view.name for view in queue.views()] == ["holder", "c7"]
    queue.delete("default", "holder")
    queue.reconcile()
    assert list(prepared(queue)) == ["c7"]


@pytest.mark.parametrize("has_idle_time", [True, False])
def test_random_changes_have_the_same_results_without_common_tries(
    new_queue: NewQueue, monkeypatch: pytest.MonkeyPatch, *, has_idle_time: bool
) -> None:
    if not has_idle_time:
        unclassified = WaitingClaims.unclassified
        now_idle = [False]
        monkeypatch.setattr(
            WaitingClaims, "unclassified", lambda waiting, limit: unclassified(waiting, limit) if now_idle[0] else []
        )
    rng = random.Random(7)
    queues = [new_queue(ClusterAllocator()) for _ in range(2)]
    names: list[str] = []
    expressions = [
        f"{IS_MODEL} && {model('A')}",
        f"!({IS_MODEL} && {model('B')}) && {IS_MODEL}",
        f"{IS_MODEL} && {model('B')}",
        f"{IS_MODEL} && {NUMBER} < 2",
        f"{IS_MODEL} && {NUMBER} <= 1",
        model("A"),  # fails on the shared device
        "true",
    ]
    phases: set[str] = set()
    for number in range(150):
        added, gone = None, ""
        if names and rng.random() < 0.4:
            gone = names.pop(rng.randrange(len(names)))
        else:
            name = f"c{number}"
            same = [{"matchAttribute": f"{DRIVER}/model"}] if rng.random() < 0.3 else []
            amount = {"capacity": memory(rng.choice(["4Gi", "8Gi"]))} if rng.random() < 0.2 else {}
            text = f'({rng.choice(expressions)}) && "{name}" != ""'
            requests = [request("r", rng.randint(1, 4), text, **amount)]
            if rng.random() < 0.2:
                requests.append(request("s", 1, rng.choice(expressions)))
            added = {"kind": "ResourceClaim", **make_claim(*requests, name=name, constraints=same)}
            names.append(name)
        results = []
        for queue, least in zip(queues, (2, 10**9), strict=True):
            monkeypatch.setattr(waiting_module, "MIN_SPECS", least)
            if added is None:
                queue.delete("default", gone)
            else:
                queue.apply([added])
            if number % 40 == 39:
                queue.devices_changed()
            queue.reconcile()
            if not has_idle_time and number % 10 == 9:
                now_idle[0] = True
                queue.reconcile()
                now_idle[0] = False
            messages_known = has_idle_time or number % 10 == 9
            results.append([(view.name, view.phase, view.message if messages_known else "") for view in queue.views()])
        assert results[0] == results[1]
        assert prepared(queues[0]) == prepared(queues[1])
        phases |= {phase for _, phase, _ in results[0]}
    assert phases == {"Pending", "Prepared"}


def test_a_result_from_before_a_release_is_dropped() -> None:
    waiting = WaitingClaims()
    for number in range(5):
        spec = waits(f"c{number}")["spec"]
        waiting.add(f"u{number}", number, digest_of(spec), spec)
    groups = [waiting.classify(group, b"same") for _, group in waiting.oldest(5)]
    assert groups == [groups[0]] * 5
    version = groups[0].version
    waiting.released()
    waiting.refuse(groups[0], version, Refusal("no", "c", fits_empty_host=True))
    assert waiting.needs_try() and waiting.untried() == [0, 1, 2, 3, 4]
    waiting.refuse(groups[0], groups[0].version, Refusal("no", "c", fits_empty_host=True))
    assert not waiting.needs_try() and waiting.untried() == []
    waiting.released()
    assert [uid for uid, _ in waiting.oldest(5)] == ["u0"]
    waiting.discard("u0")
    assert [uid for uid, _ in waiting.oldest(5)] == ["u1"]
    assert waiting.untried() == [1, 2, 3, 4]
