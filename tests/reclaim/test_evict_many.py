"""Hundreds of pods whose disruption budgets allow nothing: their deletions are sent before the deadline."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_agent.kube_client import ThrottledError
from dra_agent.kube_client.request_rate import RequestRate
from dra_agent.reclaim.eviction_policy import UNPREPARE_MARGIN, EvictionMode
from dra_agent.reclaim.evictor import Evictor, PodActions
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from dra_agent.reclaim.status import ClaimReleaseStatus
from publish.test_many_reflectors import VirtualLoop
from reclaim.doubles import ClaimsApi, FakePods, FixedReclaim, MemoryLedger
from reclaim.test_evict import DRIVER, claim, pod

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)
REQUEST_S = 0.02


class BlockedPods(FakePods):
    """Pods that no eviction may touch, behind a client with the rate of the agent's own. `deleted` has the times."""

    def __init__(self, pods: dict[str, dict[str, Any]], loop: VirtualLoop) -> None:
        super().__init__(pods)
        self.loop = loop
        self.rate = RequestRate(clock=loop.time)
        self.evictions: Counter[str] = Counter()
        self.deleted: dict[str, float] = {}

    async def send(self) -> None:
        await asyncio.sleep(self.rate.reserve() + REQUEST_S)

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        await self.send()
        return await super().get(namespace, name)

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        await self.send()
        self.evictions[name] += 1
        raise ThrottledError("a budget")

    async def delete(self, namespace: str, name: str, uid: str, grace: int) -> None:
        await self.send()
        self.deleted.setdefault(name, self.loop.time())
        end = (T0 + timedelta(seconds=self.loop.time() + grace)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.pods[name]["metadata"] |= {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}


def run_notice(
    count: int, grace: int, notice_s: float, mode: EvictionMode = "auto", *, open_s: float = 0
) -> BlockedPods:
    """Run the evictor of a notice to its deadline, which is set `open_s` after its start; times are from then on."""
    loop = VirtualLoop()
    start = loop.time() + open_s

    def now() -> datetime:
        return T0 + timedelta(seconds=loop.time())

    state = ReclaimState("b")
    if open_s:
        state = apply(state, Signal("operator", "notice", "operator", "test", None), now())
    end = now() + timedelta(seconds=open_s + notice_s)
    dated = apply(state, Signal("aws.spot", "notice", "e", "test", end), now())
    reclaim = FixedReclaim(state if open_s else dated)
    names = [f"p{number}" for number in range(count)]
    pods = BlockedPods({name: pod(grace, name=name, uid=name) for name in names}, loop)

    async def run() -> None:
        tracker = ReleaseTracker(MemoryLedger(), ClaimsApi(), node="n", driver=DRIVER)
        for name in names:
            held = claim()
            held["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name}]
            tracker.records[name] = ClaimReleaseStatus(name, "ns", name, now())
            tracker.claims[name] = held
        actions = PodActions(pods, Counter())
        evictor = Evictor(actions, tracker, reclaim, mode=mode, node="n", driver=DRIVER, now=now)
        task = asyncio.create_task(evictor.run())
        await asyncio.sleep(open_s)
        reclaim.state = dated
        await asyncio.sleep(notice_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    pods.deleted = {name: at - start for name, at in pods.deleted.items()}
    return pods


@pytest.mark.parametrize("count, grace, notice_s", [(257, 10, 30), (257, 1, 30), (500, 5, 30), (257, 30, 120)])
def test_every_pod_is_deleted_in_time_for_its_grace_period(count: int, grace: int, notice_s: float) -> None:
    pods = run_notice(count, grace, notice_s)
    assert len(pods.deleted) == count
    latest = notice_s - UNPREPARE_MARGIN.total_seconds() - grace
    assert max(pods.deleted.values()) <= latest


def test_a_later_deadline_ends_the_pauses_before_it() -> None:
    pods = run_notice(257, 10, 30, open_s=60)
    assert len(pods.deleted) == 257
    assert max(pods.deleted.values()) <= 30 - UNPREPARE_MARGIN.total_seconds() - 10


def test_a_budget_keeps_its_time_while_the_deadline_is_far() -> None:
    pods = run_notice(257, 10, 300)
    assert min(pods.deleted.values()) > 200
    assert all(count >= 3 for count in pods.evictions.values()), "evictions are retried in the meantime"


def test_pods_that_are_being_deleted_leave_requests_to_others() -> None:
    pods = run_notice(257, 10, 60)
    assert pods.reads < 257 * 10, "before, each pod was read once a second, which is the whole rate of the agent"


def test_few_pods_are_tried_as_often_as_before() -> None:
    pods = run_notice(2, 10, 60)
    assert min(pods.evictions.values()) >= 7
    assert min(pods.deleted.values()) > 60 - 2 - 10 - 5 - 2
