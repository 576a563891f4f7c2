"""The drain of a cluster node, with a real publisher and an API server that fails as a real one does."""

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
from dra_agent.kube_client import connect
from dra_agent.kube_client.client import ApiClient
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.publish import Publisher
from dra_agent.reclaim.announcements import apply_taint
from dra_agent.reclaim.drain import NOTIFY_INTERVAL_S, OVERDUE_DELAY_S, DrainController, DrainReporter, Milestone
from dra_agent.reclaim.gated_preparer import GatedPreparer
from dra_agent.reclaim.kubernetes import NodeDrain
from dra_agent.reclaim.pod_eviction import PodEviction
from dra_agent.reclaim.progress_file import PROGRESS_FILE as FILE
from dra_agent.reclaim.progress_file import ProgressFile, SavedProgress
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.taint_rollout import TaintRollout
from dra_agent.retry import Backoff
from dra_agent.slices import Slice
from eventually import DEADLINE_S, eventually_async
from fake_apiserver.fake import FakeApi
from publish.node import DRIVER, NODE, device, devices
from reclaim.doubles import MemoryLedger, entry

PREPARED = [ClaimDevice(f"{NODE}/gpu", "device", ("r",))]


class RecordingReporter(DrainReporter):
    """Records reports instead of logging them and sending Events."""

    def __init__(self, env: DrainEnvironment) -> None:
        self._env = env

    def report(self, milestone: Milestone, message: str) -> None:
        self._env.reports.append((milestone, message))

    async def notify_sources(self) -> None:
        self._env.notifications += 1


class FakeEvictions(PodEviction):
    """Runs callbacks of the test instead of evicting pods."""

    def __init__(
        self, evict: Callable[[], Awaitable[None]] | None = None, early: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._evict = evict
        self._early_work = early

    def early_evictions(self, state: ReclaimState) -> Coroutine[Any, Any, None] | None:
        return None if self._early_work is None else _run(self._early_work)

    async def evict(self, claims: ReleaseTracker) -> None:
        if self._evict is not None:
            await self._evict()

    def counts(self) -> dict[tuple[str, str], int]:
        return {}


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


@dataclass
class DrainEnvironment:
    """One node with its devices, ledger and reclaim service, and the recorded reports."""

    api: FakeApi
    folder: Path
    inventory: Inventory = field(default_factory=lambda: Inventory(devices=(*devices(3), device(9, "nic"))))
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    reports: list[tuple[str, str]] = field(default_factory=list)
    notifications: int = 0
    notice_before_start: bool = False
    """Whether the notice comes before the drain controller runs."""
    clock_offset: timedelta = timedelta()
    """Offset of the clock of the drain controller."""
    pods: FakeEvictions | None = None
    """Evicts pods that the taint does not evict."""
    reclaim: ReclaimService = field(init=False)
    controller: DrainController = field(init=False)
    publisher: Publisher = field(init=False)

    def hold(self, name: str, node: str = NODE, pods: tuple[str, ...] = ("pod",)) -> LedgerEntry:
        """Create a claim that is prepared on this node."""
        status = {
            "allocation": {
                "devices": {"results": [{"request": "r", "driver": DRIVER, "pool": f"{node}/gpu", "device": "d"}]}
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        }
        claim = {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": status}
        uid = self.api.put("resourceclaims", claim)["metadata"]["uid"]
        entry_ = entry(uid, name)
        self.ledger.add(entry_)
        return entry_

    def refuse(self, name: str, pods: tuple[str, ...] = ("pod",)) -> LedgerEntry:
        """Create a claim that is allocated to this node, and whose prepare was refused."""
        refused = self.hold(name, pods=pods)
        self.ledger.remove(refused)
        self.controller.refused(refused.uid, refused.namespace, refused.name)
        return refused

    def unprepare(self, entry: LedgerEntry) -> None:
        self.ledger.remove(entry)

    def deallocate(self, entry: LedgerEntry) -> None:
        self.api.set_status("resourceclaims", entry.namespace, entry.name, {})

    def reads(self, claim: str) -> int:
        """Return the number of requests that read a claim."""
        return sum(
            request.path.endswith(f"/{claim}") for request in tuple(self.api.requests) if request.method == "GET"
        )

    async def pass_recheck_interval(self, claim: str) -> None:
        """Wait until a claim was read twice more: one that stays prepared is read every `RECHECK_INTERVAL_S`.

        Timers of the event loop that are due earlier have run then.
        """
        reads = self.reads(claim)
        await eventually_async(lambda: self.reads(claim) >= reads + 2)

    def taints(self) -> dict[str, list[dict[str, Any]]]:
        return {
            device_["name"]: device_.get("taints", [])
            for slice_ in self.api.objects("resourceslices")
            for device_ in slice_["spec"]["devices"]
        }

    def effects(self) -> set[str]:
        """Return the effects of the reclaim taint, "" for a device without it."""
        return {next((taint["effect"] for taint in taints), "") for taints in self.taints().values()}

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(self._run(scenario))

    async def _run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(3 * DEADLINE_S), connect(self.api.kubeconfig(self.folder / "kubeconfig")) as api:
            await self.start(api)
            try:
                await eventually_async(lambda: len(self.api.objects("resourceslices")) == 2)
                await scenario()
            finally:
                await self.reclaim.stop()
                await self.controller.stop()
                await self.publisher.stop()

    async def start(self, api: ApiClient) -> None:
        self.reclaim = ReclaimService(self.folder, "boot", [])
        self.publisher = Publisher(
            api,
            node=NODE,
            driver=DRIVER,
            inventory=lambda: apply_taint(self.inventory, self.reclaim.state, DRIVER),
        )
        self.controller = DrainController(
            TaintRollout(self.publisher, DRIVER),
            ReleaseTracker(self.ledger, api, node=NODE, driver=DRIVER),
            RecordingReporter(self),
            pods=self.pods,
            file=ProgressFile(self.folder, "boot"),
            now=lambda: STEADY.now() + self.clock_offset,
        )
        if self.notice_before_start:
            await self.notice()
        self.reclaim.on_change(self.controller.changed)
        await self.controller.resume(self.reclaim.state, received_now=self.reclaim.notices > 0)
        await self.reclaim.start()
        await self.publisher.start()

    async def notice(self, seconds: float = 60) -> None:
        await self.reclaim.begin("notice", deadline=datetime.now(UTC) + timedelta(seconds=seconds), description="test")

    def saved_progress(self) -> str:
        """Return the saved progress, or "" without a file."""
        file = self.folder / FILE
        return file.read_text() if file.exists() else ""

    def milestones(self) -> list[str]:
        return [milestone for milestone, _ in self.reports]


@pytest.fixture
def env(fake_api: FakeApi, tmp_path: Path) -> DrainEnvironment:
    fake_api.put("nodes", {"metadata": {"name": NODE}})
    return DrainEnvironment(fake_api, tmp_path)


def test_a_hint_taints_no_schedule_and_a_notice_no_execute(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        await env.reclaim.begin("hint", deadline=None, description="maybe")
        await eventually_async(lambda: env.effects() == {"NoSchedule"})
        await env.notice()
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        await env.reclaim.cancel(everything=False)
        await eventually_async(lambda: env.effects() == {""})

    env.run(scenario)
    assert [milestone for milestone in env.milestones() if milestone != "released"] == ["hint", "notice", "cancelled"]


def test_pods_are_evicted_while_a_notice_is_active(env: DrainEnvironment) -> None:
    events: list[str] = []

    async def evict() -> None:
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    async def scenario() -> None:
        await env.reclaim.begin("hint", deadline=None, description="maybe")
        await eventually_async(lambda: env.effects() == {"NoSchedule"})
        assert events == [], "a hint evicts no pods"
        await env.notice()
        await eventually_async(lambda: events == ["begun"])
        await env.reclaim.cancel(everything=False)
        await eventually_async(lambda: events == ["begun", "ended"])

    env.pods = FakeEvictions(evict)
    env.run(scenario)


def test_every_slice_is_written_once(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        env.api.requests.clear()
        await env.notice()
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)

    env.run(scenario)
    assert [request.method for request in env.api.writes() if "resourceslices" in request.path] == ["PUT", "PUT"]


def test_a_device_that_appears_during_a_notice_is_tainted(
    env: DrainEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await env.notice()
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        for count in (4, 5):
            env.inventory = Inventory(devices=devices(count))
            env.publisher.devices_changed()
            await eventually_async(lambda: len(env.taints()) == len(env.inventory.devices))
            assert env.effects() == {"NoExecute"}

    with caplog.at_level("INFO"):
        env.run(scenario)
    assert [record.getMessage() for record in caplog.records].count("every device is tainted") == 1


def test_a_release_is_noticed_without_a_timer(env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    for interval in ("POLL_INTERVAL_S", "RECHECK_INTERVAL_S"):
        monkeypatch.setattr(f"dra_agent.reclaim.release_tracker.{interval}", 100 * DEADLINE_S)

    async def scenario() -> None:
        held = env.hold("first")
        await env.notice()
        await eventually_async(lambda: [record.pods for record in env.controller.progress.claims] == [("pod",)])
        env.deallocate(held)
        await asyncio.to_thread(env.unprepare, held)
        await eventually_async(lambda: "released" in env.milestones())

    env.run(scenario)


def test_each_claim_is_tracked_until_it_can_be_allocated_elsewhere(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        first, second = env.hold("first"), env.hold("second")
        await env.notice()
        await eventually_async(lambda: len(env.controller.progress.claims) == 2)
        assert env.notifications == 0
        env.unprepare(first)
        env.deallocate(first)
        await eventually_async(
            lambda: sum(record.released is not None for record in env.controller.progress.claims) == 1
        )
        assert env.notifications == 0 and "released" not in env.milestones()
        env.unprepare(second)
        await eventually_async(lambda: env.notifications >= 1)
        # Unprepared, but still allocated to this node: no other node can use it.
        await env.pass_recheck_interval("second")
        assert "released" not in env.milestones()
        assert not env.controller.progress.complete
        env.api.remove("resourceclaims", "second", "ns")
        await eventually_async(lambda: "released" in env.milestones())
        assert env.controller.progress.complete

    env.run(scenario)
    assert "2 of 2 claims released, the last" in dict(env.reports)["released"]


def test_a_notice_during_the_start_is_reported_once(env: DrainEnvironment) -> None:
    """Sources are polled before the first scan of the hardware, which may take long."""

    async def scenario() -> None:
        await eventually_async(lambda: env.effects() == {"NoExecute"})

    env.notice_before_start = True
    env.run(scenario)
    env.notice_before_start = False
    env.run(scenario)
    assert env.milestones().count("notice") == 1


@pytest.mark.parametrize("noticed_again", [False, True])
def test_a_notice_canceled_during_the_start_is_over(
    env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch, noticed_again: bool
) -> None:
    async def save_notice() -> None:
        await env.notice()

    load, loading, may_continue = ProgressFile.load, threading.Event(), threading.Event()

    def load_slowly(self: ProgressFile, noticed: datetime) -> SavedProgress:
        loading.set()
        assert may_continue.wait(DEADLINE_S)
        return load(self, noticed)

    async def cancel_while_loading() -> None:
        await eventually_async(loading.is_set)
        try:
            await env.reclaim.cancel(everything=False)
            if noticed_again:
                await env.notice()
        finally:
            may_continue.set()

    async def run() -> None:
        async with connect(env.api.kubeconfig(env.folder / "kubeconfig")) as api:
            task = asyncio.create_task(env.start(api))
            await cancel_while_loading()
            await task
            await eventually_async(lambda: env.effects() == ({"NoExecute"} if noticed_again else {""}))
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert names.count("reclaim taints") + names.count("reclaim release") <= 2 * noticed_again
            assert names.count("reclaim notify sources") == noticed_again
            await env.reclaim.stop()
            await env.controller.stop()
            await env.publisher.stop()

    env.run(save_notice)
    monkeypatch.setattr(ProgressFile, "load", load_slowly)
    asyncio.run(run())


def test_a_claim_that_was_never_prepared_is_tracked_too(env: DrainEnvironment) -> None:
    """Its pod was bound to the node just before the notice and waits there: its devices stay allocated."""

    async def scenario() -> None:
        await env.notice()
        refused = env.refuse("pending", pods=("waits",))
        env.refuse("pending-too", pods=("waits-too",))
        env.controller.refused(refused.uid, refused.namespace, refused.name)  # the kubelet retries
        await eventually_async(lambda: [record.state for record in env.controller.progress.claims] == ["refused"] * 2)
        await eventually_async(
            lambda: {record.pods for record in env.controller.progress.claims} == {("waits",), ("waits-too",)}
        )
        assert not env.controller.progress.complete
        # The kubelet has nothing to unprepare for it: sources are notified without it.
        await eventually_async(lambda: env.notifications > 0)
        env.deallocate(refused)
        env.api.remove("resourceclaims", "pending-too", "ns")
        await eventually_async(lambda: env.controller.progress.complete)
        assert {record.state for record in env.controller.progress.claims} == {"released"}
        await eventually_async(
            lambda: any(milestone == "released" and "2 of 2 claims" in note for milestone, note in env.reports)
        )

    env.run(scenario)


def test_a_cancellation_reports_when_refused_claims_are_retried(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        await env.notice()
        env.refuse("pending")
        await env.reclaim.cancel(everything=False)
        env.controller.refused("late", "ns", "late")  # a response that was in flight
        assert env.controller.progress.claims == ()

    env.run(scenario)
    assert "1 claim was refused meanwhile: the kubelet retries within 90 s" in dict(env.reports)["cancelled"]


def test_refused_claims_are_known_after_a_restart(env: DrainEnvironment) -> None:
    async def before() -> None:
        await env.notice()
        env.refuse("pending")
        await eventually_async(lambda: '"refused"' in env.saved_progress())

    async def after() -> None:
        await eventually_async(lambda: [record.state for record in env.controller.progress.claims] == ["refused"])

    env.run(before)
    env.run(after)


def test_a_claim_that_stays_allocated_is_polled_rarely(env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    soon_s, interval_s = 0.2, 0.5
    for name, value in (("FAST_POLL_S", soon_s), ("RECHECK_INTERVAL_S", interval_s), ("POLL_INTERVAL_S", 0.01)):
        monkeypatch.setattr(f"dra_agent.reclaim.release_tracker.{name}", value)

    async def scenario() -> None:
        entry = env.hold("kept")
        await env.notice()
        env.unprepare(entry)
        threshold = timedelta(seconds=soon_s)
        await eventually_async(
            lambda: (
                (unprepared := env.controller.progress.claims[0].unprepared) and STEADY.now() - unprepared > threshold
            )
        )
        loop = asyncio.get_running_loop()
        before, start = env.reads("kept"), loop.time()
        await eventually_async(lambda: env.reads("kept") >= before + 5)
        # One request may be in flight, and one may be due.
        assert env.reads("kept") - before <= 2 + (loop.time() - start) / interval_s
        env.deallocate(entry)
        await eventually_async(lambda: env.controller.progress.complete)

    env.run(scenario)


def test_a_source_that_is_heard_later_is_notified_too(env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spot notice is followed by a shutdown, which waits for the same claims; they are released by then."""
    monkeypatch.setattr("dra_agent.reclaim.release_tracker.RECHECK_INTERVAL_S", 2 * NOTIFY_INTERVAL_S)

    async def scenario() -> None:
        entry = env.hold("only")
        await env.notice()
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: env.controller.progress.complete and env.notifications)
        before = env.notifications
        await eventually_async(lambda: env.notifications > before)
        late = env.hold("late")
        await eventually_async(lambda: not env.controller.progress.complete)
        before = env.notifications
        await env.pass_recheck_interval("late")
        assert env.notifications == before, "a claim is prepared again: sources must wait"
        env.unprepare(late)
        await eventually_async(lambda: env.notifications > before)

    env.run(scenario)


def test_a_claim_reallocated_elsewhere_or_recreated_is_released(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        moved, renewed = env.hold("moved"), env.hold("renewed")
        await env.notice()
        for claim in (moved, renewed):
            env.unprepare(claim)
        results = [
            {"driver": DRIVER, "pool": "other/gpu", "device": "d"},
            {"driver": "nic.example.com", "pool": f"{NODE}/nic", "device": "d"},
        ]
        allocation = {"devices": {"results": results}}
        env.api.set_status("resourceclaims", "ns", "moved", {"allocation": allocation})
        env.api.remove("resourceclaims", "renewed", "ns")
        env.hold("renewed")
        env.ledger.remove(*env.ledger.held)
        await eventually_async(lambda: "released" in env.milestones())

    env.run(scenario)


def test_at_the_deadline_remaining_claims_are_reported_with_pods(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        env.hold("stuck", pods=("stubborn-0", "stubborn-1"))
        await env.notice()
        # The pods are known before the deadline passes.
        await eventually_async(lambda: env.controller.progress.claims[0].pods)
        await env.notice(0)
        await eventually_async(lambda: "not_released" in env.milestones())

    env.run(scenario)
    assert "ns/stuck (reserved for stubborn-0, stubborn-1)" in dict(env.reports)["not_released"]


def test_a_claim_released_without_an_agent_is_not_overdue(env: DrainEnvironment) -> None:
    """The agent restarts after the deadline: it fetches the claims before it reports any as not released."""

    async def before() -> None:
        env.hold("only")
        await env.notice()
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        await eventually_async(lambda: '"only"' in env.saved_progress())

    async def after() -> None:
        await eventually_async(lambda: "released" in env.milestones())
        assert env.controller.progress.claims[0].overdue is None

    env.run(before)
    (entry,) = env.ledger.held
    env.unprepare(entry)
    env.deallocate(entry)
    env.reports.clear()
    env.clock_offset = timedelta(hours=1)
    env.run(after)
    assert env.milestones() == ["released"]


def test_a_notice_on_a_node_without_claims_is_complete_at_once(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        await env.notice()
        # Two tasks notify the sources and report the milestone, in any order.
        await eventually_async(lambda: "released" in env.milestones() and env.notifications >= 1)

    env.run(scenario)
    assert dict(env.reports)["released"] == "0 of 0 claims released"


def test_a_claim_whose_prepare_ends_after_the_notice_is_tracked(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        await env.notice()
        await eventually_async(lambda: env.controller.progress.complete and "released" in env.milestones())
        late = env.hold("late")
        await eventually_async(lambda: [record.name for record in env.controller.progress.claims] == ["late"])
        assert not env.controller.progress.complete
        env.unprepare(late)
        env.deallocate(late)
        await eventually_async(lambda: env.controller.progress.complete)
        await eventually_async(lambda: env.milestones().count("released") == 2)

    env.run(scenario)
    assert "1 of 1 claims released" in env.reports[-1][1]


def test_an_unavailable_api_server_is_retried(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        entry = env.hold("first")
        env.unprepare(entry)
        env.ledger.add(entry)
        env.api.fail(503, times=6)
        env.api.reset(times=3)
        await env.notice()
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: "released" in env.milestones())

    env.run(scenario)


def test_a_notice_does_not_wait_for_the_backoff_of_the_publisher(
    env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After repeated failures the publisher retries once a minute; the notice period may be shorter.
    monkeypatch.setattr("dra_agent.publish.pool.Backoff", lambda **_: Backoff(first=3600.0, longest=3600.0))
    retry_s = 0.1
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.RETRY_AFTER_S", retry_s)
    monkeypatch.setattr("dra_agent.reclaim.release_tracker.RECHECK_INTERVAL_S", 3 * retry_s)

    def tries() -> int:
        # A dry run with PUT first checks whether the server keeps taints.
        return sum(request.method == "PUT" for request in tuple(env.api.requests))

    async def scenario() -> None:
        env.hold("held")
        fault = env.api.fail(503, times=None, methods="PUT")
        start = time.monotonic()
        await env.notice()
        await eventually_async(lambda: tries() >= 20, lambda: f"{tries()} tries")
        requests, duration = tries(), time.monotonic() - start
        # At once: the dry run, and each slice again for what the notice triggers meanwhile.
        assert requests <= 2 * (4 + duration / (retry_s / 2)), "a few requests per slice at once, then one per delay"
        assert env.effects() == {""}
        env.api.faults.lift(fault)
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        env.api.requests.clear()
        await env.pass_recheck_interval("held")
        assert not tries(), "tainted slices are not written again"

    env.run(scenario)


def test_a_restart_during_a_drain_keeps_the_time_of_the_notice(env: DrainEnvironment) -> None:
    before: dict[str, Any] = {}

    async def first() -> None:
        env.hold("first")
        await env.notice()
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        before.update(env.taints())

    env.run(first)
    env.reports.clear()
    env.api.requests.clear()

    async def second() -> None:
        assert env.reclaim.state.phase == "notice"
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        await eventually_async(lambda: len(env.controller.progress.claims) == 1)
        (entry,) = env.ledger.held
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: "released" in env.milestones())
        assert env.taints() == before and env.milestones() == ["released"]

    env.run(second)
    # No write: the slices already have the taint.
    assert [request.method for request in env.api.writes() if "resourceslices" in request.path] == []


def test_taints_that_the_api_server_drops_are_logged(
    env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.WARN_AFTER_S", 0.3)

    def without_taints(plural: str, object_: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for entry in object_["spec"].get("devices", ()):
                entry.pop("taints", None)

    env.api.drop_fields(without_taints)

    def warnings() -> int:
        return sum("not tainted" in record.message for record in caplog.records)

    checks: list[int] = []

    async def scenario() -> None:
        await env.notice()
        await eventually_async(warnings)
        read = env.publisher.slices

        def count_checks() -> list[Slice]:
            checks.append(1)
            return read()

        monkeypatch.setattr(env.publisher, "slices", count_checks)
        env.publisher.devices_changed()
        await eventually_async(lambda: checks)
        assert env.controller.progress.tainted_after is None

    env.run(scenario)
    assert warnings() == 1


def test_unpublished_devices_need_no_taint_for_completion(
    env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.reclaim.taint_rollout.WARN_AFTER_S", 0.3)

    def without_taints(plural: str, object_: dict[str, Any]) -> None:
        if plural == "resourceslices":
            for entry in object_["spec"].get("devices", ()):
                entry.pop("taints", None)

    env.api.drop_fields(without_taints)

    async def scenario() -> None:
        entry = env.hold("first")
        await env.notice()
        # The publisher removes devices that it cannot taint.
        await eventually_async(lambda: not env.taints())
        assert not env.controller.progress.complete
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: env.controller.progress.complete)
        assert env.controller.progress.tainted_after is None

    env.run(scenario)


@dataclass
class FakePreparer:
    prepared: list[str] = field(default_factory=list)

    def prepare(self, claim: dict[str, Any], deadline: Deadline) -> list[ClaimDevice]:
        self.prepared.append(claim["metadata"]["uid"])
        return PREPARED

    def unprepare(self, uid: str, deadline: Deadline) -> None:
        self.prepared.remove(uid)


def test_only_new_claims_are_refused_during_a_notice(tmp_path: Path) -> None:
    from dra_agent.reclaim.signal import Signal
    from dra_agent.reclaim.state import apply

    preparer, reclaim = FakePreparer(), ReclaimService(tmp_path, "b", [])
    refused: list[dict[str, Any]] = []

    class FakeLedger(MemoryLedger):
        def current(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
            return next((entry_ for entry_ in self.held if entry_.uid == uid), None)

    class FakeDrain(NodeDrain):
        def __init__(self) -> None:
            pass

        def prepared(self, claim: dict[str, Any]) -> None:
            pass

        def refused(self, claim: dict[str, Any]) -> None:
            refused.append(claim)

    gated = GatedPreparer(preparer, reclaim, FakeLedger([entry("old")]), FakeDrain())
    new, old = {"metadata": {"uid": "new"}}, {"metadata": {"uid": "old"}}
    assert gated.prepare(new, Deadline.of(60)) == PREPARED
    reclaim.state = apply(ReclaimState("b"), Signal("aws.rebalance", "hint", "h", "maybe"), datetime.now(UTC))
    assert gated.prepare(new, Deadline.of(60)) == PREPARED
    reclaim.state = apply(ReclaimState("b"), Signal("aws.spot", "notice", "n", "spot"), datetime.now(UTC))
    with pytest.raises(RetryableError, match="being reclaimed"):
        gated.prepare(new, Deadline.of(60))
    assert gated.prepare(old, Deadline.of(60)) == PREPARED
    assert refused == [new]
    gated.unprepare("new", Deadline.of(60))


def test_claims_of_another_agent_before_the_notice_are_known(tmp_path: Path) -> None:
    from dra_agent.reclaim.signal import Signal
    from dra_agent.reclaim.state import apply

    noticed = apply(ReclaimState("b"), Signal("aws.spot", "notice", "n", "spot"), datetime.now(UTC))
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
        reclaim.state = noticed
        gated = GatedPreparer(FakePreparer(), reclaim, old)
        for uid in ("kept", "later"):
            assert gated.prepare({"metadata": {"uid": uid}}, Deadline.of(60)) == PREPARED
        with pytest.raises(RetryableError, match="being reclaimed"):
            gated.prepare({"metadata": {"uid": "released"}}, Deadline.of(60))


@pytest.mark.parametrize("slow", [False, True])
def test_early_evictions_precede_the_taint_without_blocking_it(env: DrainEnvironment, slow: bool) -> None:
    order: list[str] = []
    published = asyncio.Event()

    async def evict() -> None:
        order.append("asked")
        if slow:
            await published.wait()
        order.append("gone")

    async def scenario() -> None:
        await env.notice()
        order.append("published")
        published.set()
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        await eventually_async(lambda: "gone" in order)

    env.pods = FakeEvictions(early=evict)
    env.run(scenario)
    assert order == (["asked", "published", "gone"] if slow else ["asked", "gone", "published"])


def test_claims_released_before_a_restart_are_reported_after_it(env: DrainEnvironment) -> None:
    before: dict[str, Any] = {}

    async def first() -> None:
        released, remaining = env.hold("gone"), env.hold("stays")
        await env.notice()
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        env.unprepare(released)
        env.deallocate(released)
        await eventually_async(
            lambda: [record.name for record in env.controller.progress.claims if record.released] == ["gone"]
        )
        await eventually_async(lambda: '"released"' in env.saved_progress())
        progress = env.controller.progress
        before.update(tainted=progress.tainted_after, records={record.name: record for record in progress.claims})
        assert remaining.uid in env.saved_progress()

    env.run(first)
    env.reports.clear()

    async def second() -> None:
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        # The time of the first run, not the time at which this run found them tainted.
        assert env.controller.progress.tainted_after == before["tainted"]
        (entry,) = env.ledger.held
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: env.controller.progress.complete and "released" in env.milestones())
        after = {record.name: record for record in env.controller.progress.claims}
        old = before["records"]["gone"]
        new = after["gone"]
        assert (new.seen, new.tainted, new.pods_gone, new.unprepared, new.released) == (
            old.seen,
            old.tainted,
            old.pods_gone,
            old.unprepared,
            old.released,
        )
        assert after["stays"].tainted is not None and after["stays"].pods_gone is not None
        await eventually_async(lambda: "2 of 2" in env.saved_progress())

    env.run(second)
    assert "2 of 2 claims released" in dict(env.reports)["released"]
    env.reports.clear()

    async def third() -> None:
        await eventually_async(lambda: env.controller.progress.complete)
        late = env.hold("late")
        await eventually_async(lambda: not env.controller.progress.complete)
        env.unprepare(late)
        env.deallocate(late)
        await eventually_async(lambda: any("3 of 3 claims released" in message for _, message in env.reports))

    env.run(third)
    assert env.milestones() == ["released"], "reported milestones are not reported again"


def test_overdue_claims_are_known_after_a_restart(env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.release_tracker.RECHECK_INTERVAL_S", 3 * OVERDUE_DELAY_S)

    async def first() -> None:
        env.hold("stuck", pods=("stubborn",))
        await env.notice()
        await eventually_async(lambda: env.controller.progress.claims[0].pods)
        await env.notice(0)
        await eventually_async(lambda: '"overdue"' in env.saved_progress())
        assert "not_released" in env.milestones()

    env.run(first)
    env.reports.clear()

    async def second() -> None:
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)
        await env.pass_recheck_interval("stuck")
        (record,) = env.controller.progress.claims
        assert record.overdue is not None and record.state == "prepared"

    env.run(second)
    assert "not_released" not in env.milestones()


def test_overdue_claims_are_reported_once_over_restarts(env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.release_tracker.RECHECK_INTERVAL_S", 3 * OVERDUE_DELAY_S)
    held: list[LedgerEntry] = []

    async def first() -> None:
        held.extend(env.hold(name) for name in ("one", "two"))
        await env.notice(0)
        await eventually_async(lambda: '"not_released":"0 of 2' in env.saved_progress())

    def states() -> list[str]:
        return [record.state for record in env.controller.progress.claims]

    async def second() -> None:
        await eventually_async(lambda: states() == ["released", "prepared"])
        await env.pass_recheck_interval("two")
        env.deallocate(held[1])
        env.unprepare(held[1])
        await eventually_async(lambda: "released" in env.milestones())

    env.run(first)
    env.reports.clear()
    env.deallocate(held[0])
    env.unprepare(held[0])
    env.run(second)
    assert env.milestones() == ["released"]


def test_a_later_notice_starts_with_no_records(env: DrainEnvironment) -> None:
    async def scenario() -> None:
        entry = env.hold("first")
        await env.notice()
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: "released" in env.milestones())
        await eventually_async(lambda: (env.folder / FILE).exists())
        await env.reclaim.cancel(everything=False)
        await env.notice()
        await eventually_async(lambda: env.milestones().count("released") == 2)
        assert env.controller.progress.claims == ()

    env.run(scenario)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "kept": {"boot": "boot"}}', "\x00" * 64])
def test_a_damaged_progress_file_is_quarantined(env: DrainEnvironment, text: str) -> None:
    async def first() -> None:
        env.hold("first")
        await env.notice()
        await eventually_async(lambda: (env.folder / FILE).exists())

    env.run(first)
    (env.folder / FILE).write_text(text)

    async def second() -> None:
        await eventually_async(lambda: [record.name for record in env.controller.progress.claims] == ["first"])
        await eventually_async(lambda: env.controller.progress.tainted_after is not None)

    env.run(second)
    assert (env.folder / f"{FILE}.corrupt-1").exists()


def test_a_full_disk_does_not_block_a_drain(
    env: DrainEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[str] = []

    def full(path: Path, *_: object, **__: object) -> None:
        attempts.append(path.name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dra_agent.reclaim.progress_file.atomic_file.write", full)

    async def scenario() -> None:
        entry = env.hold("first")
        await env.notice()
        await eventually_async(lambda: env.effects() == {"NoExecute"})
        await eventually_async(lambda: FILE in attempts)
        env.unprepare(entry)
        env.deallocate(entry)
        await eventually_async(lambda: "released" in env.milestones())
        await eventually_async(lambda: attempts.count(FILE) > 1)

    env.run(scenario)
    assert sum("the release states of claims cannot be saved" in record.message for record in caplog.records) == 1
