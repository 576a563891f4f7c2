"""The sequence of a node of a cluster, against a real publisher and an API server that fails as a real one does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_agent.claim import ClaimDevice
from dra_agent.clock import STEADY
from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Inventory
from dra_agent.kube_client import Backoff, connect
from dra_agent.kube_client.client import ApiClient
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.publish import Publisher
from dra_agent.reclaim.announcements import apply_taint
from dra_agent.reclaim.drain import NOTIFY_INTERVAL_S, DrainController, DrainReporter, Milestone
from dra_agent.reclaim.gated_preparer import GatedPreparer
from dra_agent.reclaim.kubernetes import NodeDrain
from dra_agent.reclaim.pod_eviction import PodEviction
from dra_agent.reclaim.release_tracker import RECHECK_INTERVAL_S, ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import PROGRESS_FILE as FILE
from dra_agent.reclaim.state_file import ProgressFile, SavedProgress
from dra_agent.reclaim.taint_rollout import TaintRollout
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import DRIVER, NODE, device, devices
from reclaim.doubles import MemoryLedger, entry

PREPARED = [ClaimDevice(f"{NODE}/gpu", "device", ("r",))]


class RecordedReports(DrainReporter):
    """Keeps what is reported, in place of the log, Events and sources."""

    def __init__(self, world: World) -> None:
        self._world = world

    def report(self, milestone: Milestone, message: str) -> None:
        self._world.told.append((milestone, message))

    async def notify_sources(self) -> None:
        self._world.released += 1


class Evictions(PodEviction):
    """Evicts what the tests say, in place of the pods of an API server."""

    def __init__(
        self, evict: Callable[[], Awaitable[None]] | None = None, early: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._evict = evict
        self._first = early

    def early_evictions(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        return None if self._first is None else _run(self._first)

    async def evict(self, claims: ReleaseTracker) -> None:
        if self._evict is not None:
            await self._evict()

    def counts(self) -> dict[tuple[str, str], int]:
        return {}


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


@dataclass
class World:
    """One node: its devices, its ledger, its reclaim, and what was told of it."""

    api: FakeApi
    folder: Path
    inventory: Inventory = field(default_factory=lambda: Inventory(devices=(*devices(3), device(9, "nic"))))
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    told: list[tuple[str, str]] = field(default_factory=list)
    released: int = 0
    early: bool = False
    """Whether a notice comes before anybody acts on it."""
    passed: timedelta = timedelta()
    """Time that passed before the drain starts, by its clock."""
    pods: Evictions | None = None
    """Evicts pods that the taint does not evict."""
    reclaim: ReclaimService = field(init=False)
    sequence: DrainController = field(init=False)
    publisher: Publisher = field(init=False)

    def hold(self, name: str, node: str = NODE, pods: tuple[str, ...] = ("pod",)) -> LedgerEntry:
        """A claim that is prepared here."""
        status = {
            "allocation": {
                "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": f"{node}/gpu", "device": "d"}]}
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        }
        claim = {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status}
        uid = self.api.put("resourceclaims", claim)["metadata"]["uid"]
        held = entry(uid, name)
        self.ledger.add(held)
        return held

    def refuse(self, name: str, pods: tuple[str, ...] = ("pod",)) -> LedgerEntry:
        """A claim that is allocated here, and whose prepare was refused: its pod waits on this node."""
        refused = self.hold(name, pods=pods)
        self.ledger.remove(refused)
        self.sequence.refused(refused.uid, refused.namespace, refused.name)
        return refused

    def unprepare(self, entry: LedgerEntry) -> None:
        self.ledger.remove(entry)

    def deallocate(self, entry: LedgerEntry) -> None:
        self.api.set_status("resourceclaims", entry.namespace, entry.name, {})

    def taints(self) -> dict[str, list[dict[str, Any]]]:
        return {
            found["name"]: found.get("taints", [])
            for one in self.api.objects("resourceslices")
            for found in one["spec"]["devices"]
        }

    def effects(self) -> set[str]:
        """The reclaim taint's effects, "" for a device that has none."""
        return {next((t["effect"] for t in taints), "") for taints in self.taints().values()}

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(self._run(story))

    async def _run(self, story: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(3 * DEADLINE_S), connect(self.api.kubeconfig(self.folder / "kubeconfig")) as api:
            await self._start(api)
            try:
                await eventually_async(lambda: len(self.api.objects("resourceslices")) == 2)
                await story()
            finally:
                await self.reclaim.stop()
                await self.sequence.stop()
                await self.publisher.stop()

    async def _start(self, api: ApiClient) -> None:
        self.reclaim = ReclaimService(self.folder, "boot", [])
        self.publisher = Publisher(
            api,
            node=NODE,
            driver=DRIVER,
            inventory=lambda: apply_taint(self.inventory, self.reclaim.state, DRIVER),
        )
        self.sequence = DrainController(
            TaintRollout(self.publisher, DRIVER),
            ReleaseTracker(self.ledger, api, node=NODE, driver=DRIVER),
            RecordedReports(self),
            pods=self.pods,
            file=ProgressFile(self.folder, "boot"),
            now=lambda: STEADY.now() + self.passed,
        )
        if self.early:
            await self.notice()
        self.reclaim.on_change(self.sequence.changed)
        await self.sequence.resume(self.reclaim.state, received_now=self.reclaim.notices > 0)
        await self.reclaim.start()
        await self.publisher.start()

    async def notice(self, seconds: float = 60) -> None:
        await self.reclaim.begin("notice", deadline=datetime.now(UTC) + timedelta(seconds=seconds), what="test")

    def kept(self) -> str:
        """What is on disk of the claims' records; empty while nothing is."""
        file = self.folder / FILE
        return file.read_text() if file.exists() else ""

    def whats(self) -> list[str]:
        return [what for what, _ in self.told]


@pytest.fixture
def world(fake_api: FakeApi, tmp_path: Path) -> World:
    fake_api.put("nodes", {"metadata": {"name": NODE}})
    return World(fake_api, tmp_path)


def test_a_hint_keeps_new_claims_away_and_a_notice_moves_pods_away(world: World) -> None:
    async def story() -> None:
        await world.reclaim.begin("hint", deadline=None, what="maybe")
        await eventually_async(lambda: world.effects() == {"NoSchedule"})
        await world.notice()
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        await world.reclaim.cancel(everything=False)
        await eventually_async(lambda: world.effects() == {""})

    world.run(story)
    assert [what for what in world.whats() if what != "released"] == ["hint", "notice", "cancelled"]


def test_pods_are_evicted_for_as_long_as_a_notice_holds(world: World) -> None:
    told: list[str] = []

    async def evict() -> None:
        told.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")

    async def story() -> None:
        await world.reclaim.begin("hint", deadline=None, what="maybe")
        await eventually_async(lambda: world.effects() == {"NoSchedule"})
        assert told == [], "a hint moves nobody"
        await world.notice()
        await eventually_async(lambda: told == ["begun"])
        await world.reclaim.cancel(everything=False)
        await eventually_async(lambda: told == ["begun", "ended"])

    world.pods = Evictions(evict)
    world.run(story)


def test_every_slice_is_written_once_and_soon(world: World) -> None:
    took = 0.0

    async def story() -> None:
        nonlocal took
        world.api.requests.clear()
        began = time.monotonic()
        await world.notice()
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        took = time.monotonic() - began

    world.run(story)
    assert [seen.method for seen in world.api.writes() if "resourceslices" in seen.path] == ["PUT", "PUT"]
    # No timed test: only that nothing on the way waits for a timer (the shortest is 250 ms).
    assert took < 20


def test_each_claim_is_followed_until_another_node_can_have_it(world: World) -> None:
    async def story() -> None:
        first, second = world.hold("first"), world.hold("second")
        await world.notice()
        await eventually_async(lambda: len(world.sequence.progress.claims) == 2)
        assert world.released == 0
        world.unprepare(first)
        world.deallocate(first)
        await eventually_async(lambda: sum(r.released is not None for r in world.sequence.progress.claims) == 1)
        assert world.released == 0 and "released" not in world.whats()
        world.unprepare(second)
        await eventually_async(lambda: world.released >= 1)
        # Given back by the kubelet, but still allocated here: nobody else can have it.
        await asyncio.sleep(0.4)
        assert "released" not in world.whats()
        assert not world.sequence.progress.complete
        world.api.remove("resourceclaims", "second", "ns")
        await eventually_async(lambda: "released" in world.whats())
        assert world.sequence.progress.complete

    world.run(story)
    assert "2 of 2 claims released, the last" in dict(world.told)["released"]


def test_a_notice_that_comes_while_the_agent_starts_is_told_once(world: World) -> None:
    """Sources are heard before the devices are looked at, which may take long."""

    async def story() -> None:
        await eventually_async(lambda: world.effects() == {"NoExecute"})

    world.early = True
    world.run(story)
    world.early = False
    world.run(story)
    assert world.whats().count("notice") == 1


@pytest.mark.parametrize("anew", [False, True])
def test_what_is_taken_back_while_the_agent_starts_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    async def before() -> None:
        await world.notice()

    load, loading, go_on = ProgressFile.load, threading.Event(), threading.Event()

    def slow(self: ProgressFile, noticed: datetime) -> SavedProgress:
        loading.set()
        assert go_on.wait(DEADLINE_S)
        return load(self, noticed)

    async def taken_back() -> None:
        await eventually_async(loading.is_set)
        try:
            await world.reclaim.cancel(everything=False)
            if anew:
                await world.notice()
        finally:
            go_on.set()

    async def play() -> None:
        async with connect(world.api.kubeconfig(world.folder / "kubeconfig")) as api:
            task = asyncio.create_task(world._start(api))
            await taken_back()
            await task
            await eventually_async(lambda: world.effects() == ({"NoExecute"} if anew else {""}))
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert names.count("reclaim taints") + names.count("reclaim release") <= 2 * anew
            assert names.count("reclaim let go") == anew
            await world.reclaim.stop()
            await world.sequence.stop()
            await world.publisher.stop()

    world.run(before)
    monkeypatch.setattr(ProgressFile, "load", slow)
    asyncio.run(play())


def test_a_claim_that_was_never_prepared_is_followed_too(world: World) -> None:
    """Its pod was bound to the node just before the notice, and waits there: nobody else can have what it was given."""

    async def story() -> None:
        await world.notice()
        refused = world.refuse("pending", pods=("waits",))
        world.refuse("pending-too", pods=("waits-too",))
        world.sequence.refused(refused.uid, refused.namespace, refused.name)  # the kubelet asks again
        await eventually_async(lambda: [record.state for record in world.sequence.progress.claims] == ["refused"] * 2)
        await eventually_async(
            lambda: {record.pods for record in world.sequence.progress.claims} == {("waits",), ("waits-too",)}
        )
        assert not world.sequence.progress.complete
        # The kubelet has nothing of it to give back, so nothing that waits for that has to.
        await eventually_async(lambda: world.released > 0)
        world.deallocate(refused)
        world.api.remove("resourceclaims", "pending-too", "ns")
        await eventually_async(lambda: world.sequence.progress.complete)
        assert {record.state for record in world.sequence.progress.claims} == {"released"}
        await eventually_async(lambda: any(what == "released" and "2 of 2 claims" in note for what, note in world.told))

    world.run(story)


def test_who_was_refused_is_told_when_the_kubelet_asks_again(world: World) -> None:
    async def story() -> None:
        await world.notice()
        world.refuse("pending")
        await world.reclaim.cancel(everything=False)
        world.sequence.refused("late", "ns", "late")  # an answer that was on its way
        assert world.sequence.progress.claims == ()

    world.run(story)
    assert "1 claim was refused meanwhile: the kubelet retries within 90 s" in dict(world.told)["cancelled"]


def test_who_was_refused_is_known_after_a_restart(world: World) -> None:
    async def before() -> None:
        await world.notice()
        world.refuse("pending")
        await eventually_async(lambda: '"refused"' in world.kept())

    async def after() -> None:
        await eventually_async(lambda: [record.state for record in world.sequence.progress.claims] == ["refused"])

    world.run(before)
    world.run(after)


def test_a_claim_that_nobody_frees_is_not_asked_for_all_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.release_tracker.SOON_S", 0.5)

    def reads() -> int:
        return sum(seen.path.endswith("/resourceclaims/kept") for seen in world.api.requests)

    async def story() -> None:
        entry = world.hold("kept")
        await world.notice()
        world.unprepare(entry)
        soon = timedelta(seconds=0.5)
        await eventually_async(
            lambda: (back := world.sequence.progress.claims[0].unprepared) and STEADY.now() - back > soon
        )
        loop = asyncio.get_running_loop()
        before, began = reads(), loop.time()
        await asyncio.sleep(2.5)
        # One may be on its way, and one due at once.
        assert reads() - before <= 2 + (loop.time() - began) / RECHECK_INTERVAL_S, "a look every two seconds"
        world.deallocate(entry)
        await eventually_async(lambda: world.sequence.progress.complete)

    world.run(story)


def test_a_source_that_comes_late_learns_that_nothing_has_to_wait(world: World) -> None:
    """A spot notice is followed by an orderly shutdown, which waits for the same claims; they were released before."""

    async def story() -> None:
        entry = world.hold("only")
        await world.notice()
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: world.sequence.progress.complete and world.released)
        before = world.released
        await eventually_async(lambda: world.released > before)
        late = world.hold("late")
        await eventually_async(lambda: not world.sequence.progress.complete)
        before = world.released
        await asyncio.sleep(2 * NOTIFY_INTERVAL_S)
        assert world.released == before, "a claim is held again: whoever waits has to wait"
        world.unprepare(late)
        await eventually_async(lambda: world.released > before)

    world.run(story)


def test_a_claim_that_was_allocated_elsewhere_or_made_anew_is_released(world: World) -> None:
    async def story() -> None:
        moved, renewed = world.hold("moved"), world.hold("renewed")
        await world.notice()
        for claim in (moved, renewed):
            world.unprepare(claim)
        results = [
            {"driver": DRIVER, "pool": "other/gpu", "device": "d"},
            {"driver": "nic.example.com", "pool": f"{NODE}/nic", "device": "d"},
        ]
        allocation = {"devices": {"results": results}}
        world.api.set_status("resourceclaims", "ns", "moved", {"allocation": allocation})
        world.api.remove("resourceclaims", "renewed", "ns")
        world.hold("renewed")
        world.ledger.remove(*world.ledger.held)
        await eventually_async(lambda: "released" in world.whats())

    world.run(story)


def test_at_the_deadline_people_are_told_who_keeps_a_claim(world: World) -> None:
    async def story() -> None:
        world.hold("stuck", pods=("stubborn-0", "stubborn-1"))
        await world.notice()
        # Its pods are known before the deadline passes.
        await eventually_async(lambda: world.sequence.progress.claims[0].pods)
        await world.notice(0)
        await eventually_async(lambda: "kept" in world.whats())

    world.run(story)
    assert "ns/stuck (reserved for stubborn-0, stubborn-1)" in dict(world.told)["kept"]


def test_a_claim_released_while_no_agent_ran_is_not_reported_as_overdue(world: World) -> None:
    """The agent is started again after the deadline: the claims are read before any is reported as not released."""

    async def before() -> None:
        world.hold("only")
        await world.notice()
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        await eventually_async(lambda: '"only"' in world.kept())

    async def after() -> None:
        await eventually_async(lambda: "released" in world.whats())
        assert world.sequence.progress.claims[0].overdue is None

    world.run(before)
    (entry,) = world.ledger.held
    world.unprepare(entry)
    world.deallocate(entry)
    world.told.clear()
    world.passed = timedelta(hours=1)
    world.run(after)
    assert world.whats() == ["released"]


def test_a_notice_on_a_node_without_claims_is_done_at_once(world: World) -> None:
    async def story() -> None:
        await world.notice()
        # Sources and people are told by two tasks, in any order.
        await eventually_async(lambda: "released" in world.whats() and world.released >= 1)

    world.run(story)
    assert dict(world.told)["released"] == "0 of 0 claims released"


def test_a_claim_whose_prepare_ends_after_the_notice_is_followed_too(world: World) -> None:
    async def story() -> None:
        await world.notice()
        await eventually_async(lambda: world.sequence.progress.complete and "released" in world.whats())
        late = world.hold("late")
        await eventually_async(lambda: [record.name for record in world.sequence.progress.claims] == ["late"])
        assert not world.sequence.progress.complete
        world.unprepare(late)
        world.deallocate(late)
        await eventually_async(lambda: world.sequence.progress.complete)
        await eventually_async(lambda: world.whats().count("released") == 2)

    world.run(story)
    assert "1 of 1 claims released" in world.told[-1][1]


def test_an_api_server_that_is_away_is_tried_until_it_is_there(world: World) -> None:
    async def story() -> None:
        entry = world.hold("first")
        world.unprepare(entry)
        world.ledger.add(entry)
        world.api.fail(503, times=6)
        world.api.reset(times=3)
        await world.notice()
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: "released" in world.whats())

    world.run(story)


def test_a_notice_does_not_wait_for_the_publishers_patience(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # After some failures the publisher tries once a minute; a host that is taken does not have that long.
    monkeypatch.setattr("dra_agent.publish.pool.Backoff", lambda **_: Backoff(first=3600.0, longest=3600.0))
    press = 0.1
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.RETRY_AFTER_S", press)

    def tries() -> int:
        # Whether the server keeps a taint is asked first, in a PUT that writes nothing.
        return sum(seen.method == "PUT" for seen in tuple(world.api.requests))

    async def story() -> None:
        away = world.api.fail(503, times=None, methods="PUT")
        began = time.monotonic()
        await world.notice()
        await eventually_async(lambda: tries() >= 6, lambda: f"{tries()} tries")
        made, took = tries(), time.monotonic() - began
        assert made <= 2 * (1 + took / (press / 2)), "each of two slices at once, and then once after each pause"
        assert world.effects() == {""}
        world.api.faults.lift(away)
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        world.api.requests.clear()
        await asyncio.sleep(3 * press)
        assert not tries(), "what is tainted is left alone"

    world.run(story)


def test_a_restart_in_the_middle_goes_on_with_the_same_time(world: World) -> None:
    before: dict[str, Any] = {}

    async def first() -> None:
        world.hold("first")
        await world.notice()
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        before.update(world.taints())

    world.run(first)
    world.told.clear()
    world.api.requests.clear()

    async def second() -> None:
        assert world.reclaim.state.phase == "notice"
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        await eventually_async(lambda: len(world.sequence.progress.claims) == 1)
        await asyncio.sleep(0.2)
        assert world.taints() == before and world.told == []
        (entry,) = world.ledger.held
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: "released" in world.whats())

    world.run(second)
    # Not one write: the slices already say what they should.
    assert [seen.method for seen in world.api.writes() if "resourceslices" in seen.path] == []


def test_taints_that_the_api_server_does_not_take_are_complained_about(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.WARN_AFTER_S", 0.3)

    def without_taints(plural: str, found: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for entry in found["spec"].get("devices", ()):
                entry.pop("taints", None)

    world.api.drop_fields(without_taints)

    def complaints() -> int:
        return sum("not tainted" in record.message for record in caplog.records)

    async def story() -> None:
        await world.notice()
        await eventually_async(complaints)
        await asyncio.sleep(0.5)
        assert world.sequence.progress.tainted_after is None

    world.run(story)
    assert complaints() == 1


def test_devices_that_are_not_on_offer_need_no_taint_for_it_to_be_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.WARN_AFTER_S", 0.3)

    def without_taints(plural: str, found: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for entry in found["spec"].get("devices", ()):
                entry.pop("taints", None)

    world.api.drop_fields(without_taints)

    async def story() -> None:
        entry = world.hold("first")
        await world.notice()
        # The publisher takes back what it may not taint.
        await eventually_async(lambda: not world.taints())
        assert not world.sequence.progress.complete
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: world.sequence.progress.complete)
        assert world.sequence.progress.tainted_after is None

    world.run(story)


@dataclass
class Preparer:
    prepared: list[str] = field(default_factory=list)

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        self.prepared.append(claim["metadata"]["uid"])
        return PREPARED

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        self.prepared.remove(uid)


def test_new_claims_are_refused_while_a_notice_holds_and_old_ones_are_not(tmp_path: Path) -> None:
    from dra_agent.reclaim.signal import Signal
    from dra_agent.reclaim.state import apply

    preparer, reclaim = Preparer(), ReclaimService(tmp_path, "b", [])
    refused: list[dict[str, Any]] = []

    class Known(MemoryLedger):
        def current(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
            return next((held for held in self.held if held.uid == uid), None)

    class Drain(NodeDrain):
        def __init__(self) -> None:
            pass

        def prepared(self, claim: dict[str, Any]) -> None:
            pass

        def refused(self, claim: dict[str, Any]) -> None:
            refused.append(claim)

    refusing = GatedPreparer(preparer, reclaim, Known([entry("old")]), Drain())
    new, old = {"metadata": {"uid": "new"}}, {"metadata": {"uid": "old"}}
    assert refusing.prepare(new, Deadline.of(60)) == PREPARED
    reclaim.state = apply(ReclaimState("b"), Signal("aws.rebalance", "hint", "h", "maybe"), datetime.now(UTC))
    assert refusing.prepare(new, Deadline.of(60)) == PREPARED
    reclaim.state = apply(ReclaimState("b"), Signal("aws.spot", "notice", "n", "spot"), datetime.now(UTC))
    with pytest.raises(RetryableError, match="being reclaimed"):
        refusing.prepare(new, Deadline.of(60))
    assert refusing.prepare(old, Deadline.of(60)) == PREPARED
    assert refused == [new]
    refusing.unprepare("new", Deadline.of(60))


def test_what_another_agent_prepared_or_released_before_the_notice_is_known(tmp_path: Path) -> None:
    from dra_agent.reclaim.signal import Signal
    from dra_agent.reclaim.state import apply

    taken = apply(ReclaimState("b"), Signal("aws.spot", "notice", "n", "spot"), datetime.now(UTC))
    with (
        JournalLedger(tmp_path, "b", shared_as="old") as old,
        JournalLedger(tmp_path, "b", shared_as="new") as new,
    ):
        for uid in ("kept", "released"):
            with old.lease():
                old.start(LedgerEntry(uid, "default", uid, ()), durable=True)
                old.complete(uid, {})
        with new.lease():
            new.release("released")
            new.start(LedgerEntry("later", "default", "later", ()), durable=True)
        reclaim = ReclaimService(tmp_path, "b", [])
        reclaim.state = taken
        refusing = GatedPreparer(Preparer(), reclaim, old)
        for uid in ("kept", "later"):
            assert refusing.prepare({"metadata": {"uid": uid}}, Deadline.of(60)) == PREPARED
        with pytest.raises(RetryableError, match="being reclaimed"):
            refusing.prepare({"metadata": {"uid": "released"}}, Deadline.of(60))


@pytest.mark.parametrize("slow", [False, True])
def test_who_has_to_be_asked_before_the_taint_is_but_does_not_hold_it_up(world: World, slow: bool) -> None:
    order: list[str] = []
    published = asyncio.Event()

    async def first() -> None:
        order.append("asked")
        if slow:
            await published.wait()
        order.append("gone")

    async def story() -> None:
        await world.notice()
        order.append("published")
        published.set()
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        await eventually_async(lambda: "gone" in order)

    world.pods = Evictions(early=first)
    world.run(story)
    assert order == (["asked", "published", "gone"] if slow else ["asked", "gone", "published"])


def test_what_was_released_before_a_restart_is_told_after_it(world: World) -> None:
    before: dict[str, Any] = {}

    async def first() -> None:
        gone, stays = world.hold("gone"), world.hold("stays")
        await world.notice()
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        world.unprepare(gone)
        world.deallocate(gone)
        await eventually_async(lambda: [r.name for r in world.sequence.progress.claims if r.released] == ["gone"])
        await eventually_async(lambda: '"released"' in world.kept())
        progress = world.sequence.progress
        before.update(tainted=progress.tainted_after, records={r.name: r for r in progress.claims})
        assert stays.uid in world.kept()

    world.run(first)
    world.told.clear()

    async def second() -> None:
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        # Not since when this run has found them tainted.
        assert world.sequence.progress.tainted_after == before["tainted"]
        (entry,) = world.ledger.held
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: world.sequence.progress.complete and "released" in world.whats())
        after = {record.name: record for record in world.sequence.progress.claims}
        was = before["records"]["gone"]
        now = after["gone"]
        assert (now.seen, now.tainted, now.pods_gone, now.unprepared, now.released) == (
            was.seen,
            was.tainted,
            was.pods_gone,
            was.unprepared,
            was.released,
        )
        assert after["stays"].tainted is not None and after["stays"].pods_gone is not None
        await eventually_async(lambda: "2 of 2" in world.kept())

    world.run(second)
    assert "2 of 2 claims released" in dict(world.told)["released"]
    world.told.clear()

    async def third() -> None:
        await eventually_async(lambda: world.sequence.progress.complete)
        await asyncio.sleep(0.5)

    world.run(third)
    assert world.told == [], "what was told is not told again"


def test_who_was_too_late_is_known_after_a_restart(world: World) -> None:
    async def first() -> None:
        world.hold("stuck", pods=("stubborn",))
        await world.notice()
        await eventually_async(lambda: world.sequence.progress.claims[0].pods)
        await world.notice(0)
        await eventually_async(lambda: '"overdue"' in world.kept())
        assert "kept" in world.whats()

    world.run(first)
    world.told.clear()

    async def second() -> None:
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)
        await asyncio.sleep(0.5)
        (record,) = world.sequence.progress.claims
        assert record.overdue is not None and record.state == "prepared"

    world.run(second)
    assert "kept" not in world.whats()


def test_another_notice_begins_with_nothing(world: World) -> None:
    async def story() -> None:
        entry = world.hold("first")
        await world.notice()
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: "released" in world.whats())
        await eventually_async(lambda: (world.folder / FILE).exists())
        await world.reclaim.cancel(everything=False)
        await world.notice()
        await eventually_async(lambda: world.whats().count("released") == 2)
        assert world.sequence.progress.claims == ()

    world.run(story)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "kept": {"boot": "boot"}}', "\x00" * 64])
def test_a_damaged_file_of_records_costs_nothing_but_itself(world: World, text: str) -> None:
    async def first() -> None:
        world.hold("first")
        await world.notice()
        await eventually_async(lambda: (world.folder / FILE).exists())

    world.run(first)
    (world.folder / FILE).write_text(text)

    async def second() -> None:
        await eventually_async(lambda: [record.name for record in world.sequence.progress.claims] == ["first"])
        await eventually_async(lambda: world.sequence.progress.tainted_after is not None)

    world.run(second)
    assert (world.folder / f"{FILE}.corrupt-1").exists()


def test_a_disk_that_is_full_keeps_nobody_from_leaving(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dra_agent.reclaim.state_file.atomic_file.write", full)

    async def story() -> None:
        entry = world.hold("first")
        await world.notice()
        await eventually_async(lambda: world.effects() == {"NoExecute"})
        await asyncio.sleep(0.6)
        world.unprepare(entry)
        world.deallocate(entry)
        await eventually_async(lambda: "released" in world.whats())

    world.run(story)
    assert sum("what became of claims is not kept" in record.message for record in caplog.records) == 1
