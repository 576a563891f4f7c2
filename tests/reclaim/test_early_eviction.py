"""Pods that the taint would give more time than there is: known before a notice, asked before the taint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_agent.kube_client import ForbiddenError, ThrottledError, UnavailableError
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.reclaim.claim_pods import ClaimPod, ClaimPodIndex
from dra_agent.reclaim.eviction_policy import Mode
from dra_agent.reclaim.evictor import PodActions
from dra_agent.reclaim.pod_eviction import EarlyEvictor
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from eventually import eventually_async
from logged import logged_by
from reclaim.doubles import ClaimsApi, MemoryLedger, Pods, entry
from reclaim.test_evict import DRIVER, claim, controlled_by, pod, tolerates

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def allocated(uid: str = "c") -> dict[str, Any]:
    return {"metadata": {"name": "c", "namespace": "ns", "uid": uid}, **claim()}


def learned(
    claims: ClaimsApi, pods: Pods, story: Callable[[ClaimPodIndex, MemoryLedger], Awaitable[None]], *held: LedgerEntry
) -> None:
    async def play() -> None:
        entries = MemoryLedger(held)
        consumers = ClaimPodIndex(entries, claims, pods)
        consumers.start()
        try:
            async with asyncio.timeout(60):
                await story(consumers, entries)
        finally:
            await consumers.stop()

    asyncio.run(play())


def test_who_uses_claims_is_known_from_the_start_and_from_each_prepare() -> None:
    pods, claims = Pods({"p": pod(600)}), ClaimsApi({"c": allocated()})

    async def story(consumers: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [one.name for one in consumers] == ["p"])
        # A second claim is prepared; the first is given back.
        second = allocated("d")
        second["metadata"]["name"] = "d"
        second["status"]["reservedFor"] = [{"resource": "pods", "name": "q", "uid": "q"}]
        claims.claims["d"] = second
        pods.pods["q"] = pod(5) | {"metadata": {"name": "q", "uid": "q"}}
        entries.add(entry("d", "d"))
        consumers.prepared("d", "ns", "d")
        await eventually_async(lambda: [one.name for one in consumers] == ["p", "q"])
        entries.remove(entry("c"))
        assert [one.name for one in consumers] == ["q"]

    learned(claims, pods, story, entry("c"))


def test_what_cannot_be_read_at_first_is_read_later_and_what_is_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pods, claims = Pods({"p": pod(600)}), ClaimsApi({"c": allocated()}, [UnavailableError("away")])

    async def story(consumers: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: list(consumers))
        claims.claims.clear()
        consumers.refresh()
        await eventually_async(lambda: claims.reads == 3)
        assert [one.name for one in consumers] == ["p"], "what was known stays"

    learned(claims, pods, story, entry("c"))


def test_a_claim_that_is_gone_keeps_nobody_else_from_being_known() -> None:
    pods, claims = Pods({"p": pod(600)}), ClaimsApi({"c": allocated()})

    async def story(consumers: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [one.name for one in consumers] == ["p"])

    learned(claims, pods, story, entry("gone", "gone"), entry("c"))


def test_another_claim_or_pod_of_that_name_is_nobody() -> None:
    pods = Pods({"p": pod() | {"metadata": {"name": "p", "uid": "another"}}})
    claims = ClaimsApi({"c": allocated(), "d": allocated("another")})

    async def story(consumers: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: claims.reads == 2)
        await asyncio.sleep(0.05)
        assert list(consumers) == []

    learned(claims, pods, story, entry("c"), entry("d", "d"))


def test_without_the_right_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Closed(Pods):
        async def get(self, namespace: str, name: str) -> dict[str, Any]:
            raise ForbiddenError("no")

    claims = ClaimsApi({"c": allocated()})

    async def story(consumers: ClaimPodIndex, entries: MemoryLedger) -> None:
        for _ in range(3):
            consumers.refresh()
        await asyncio.sleep(0.1)

    learned(claims, Closed(), story, entry("c"))
    assert [one.message for one in logged_by(caplog, "dra_agent.reclaim")] == ["grace periods of pods are not known"]


def notice(seconds: float | None) -> ReclaimState:
    deadline = None if seconds is None else NOW + timedelta(seconds=seconds)
    return apply(ReclaimState("b"), Signal("aws.spot", "notice", "e", "w", deadline), NOW)


def asked(*consumers: ClaimPod, seconds: float | None = 30, mode: Mode = "auto", pods: Pods | None = None) -> Pods:
    pods = pods or Pods()

    async def play() -> None:
        mover = PodActions(pods, Counter())
        first = EarlyEvictor(consumers, mover, mode=mode, node="n", driver=DRIVER, now=lambda: NOW).evictions(
            notice(seconds)
        )
        if first is not None:
            await first

    asyncio.run(play())
    return pods


def user(grace: int, uid: str = "u", of: dict[str, Any] | None = None, **more: Any) -> ClaimPod:
    return ClaimPod("ns", f"pod-{uid}", uid, pod(grace, **more), of or claim())


@pytest.mark.parametrize(("mode", "how"), [("auto", "evict"), ("evict", "evict"), ("delete", "evict")])
def test_only_who_has_a_longer_grace_than_the_host_is_asked(mode: Mode, how: str) -> None:
    pods = asked(user(600, "long"), user(28, "fits"), user(29, "nearly"), mode=mode)
    assert sorted(pods.done) == [(how, "pod-long", 28), (how, "pod-nearly", 28)]


def test_a_pod_with_two_claims_is_asked_once() -> None:
    assert len(asked(user(600), user(600)).done) == 1


@pytest.mark.parametrize(
    "spared",
    [
        user(600, **controlled_by("DaemonSet")),
        user(600, annotations={f"{DRIVER}/reclaim": "keep"}),
        user(600, of=claim(tolerates())),
        user(600, of=claim(tolerates(tolerationSeconds=20))),
        user(600, node="other"),
    ],
)
def test_who_is_spared_is_spared_here_too(spared: ClaimPod) -> None:
    assert asked(spared).done == []


def test_without_a_deadline_or_where_only_the_taint_acts_nobody_is_asked() -> None:
    assert asked(user(600), seconds=None).done == []
    assert asked(user(600), mode="taint").done == []


def test_a_budget_does_not_give_a_pod_more_time_than_its_host_has() -> None:
    # The taint asks no budget either; to wait for one would mean the whole grace period.
    pods = asked(user(600), pods=Pods(errors=[ThrottledError("none")]))
    assert pods.done == [("delete", "pod-u", 28)]


def test_one_that_cannot_be_moved_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    pods = asked(user(600, "a"), user(600, "b"), mode="evict", pods=Pods(errors=[UnavailableError("away")]))
    assert [name for _, name, _ in pods.done] == ["pod-b"]
    assert sum("failed to evict a pod" in record.message for record in caplog.records) == 1
