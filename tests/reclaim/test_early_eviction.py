"""Pods with a grace period beyond the deadline: known before a notice, and evicted before the taint."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dra_agent.kube_client import ForbiddenError, ThrottledError, UnavailableError
from dra_agent.kube_client.kinds import Kind
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.reclaim.claim_pods import ClaimPod, ClaimPodIndex
from dra_agent.reclaim.eviction_policy import EvictionMode
from dra_agent.reclaim.evictor import PodActions
from dra_agent.reclaim.pod_eviction import EarlyEvictor
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from eventually import eventually_async
from logged import logged_by
from reclaim.doubles import ClaimsApi, FakePods, MemoryLedger, entry
from reclaim.test_evict import DRIVER, claim, controlled_by, pod, tolerates

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def allocated(uid: str = "c") -> dict[str, Any]:
    return {"metadata": {"name": "c", "namespace": "ns", "uid": uid}, **claim()}


def run_index(
    claims: ClaimsApi,
    pods: FakePods,
    scenario: Callable[[ClaimPodIndex, MemoryLedger], Awaitable[None]],
    *entries_: LedgerEntry,
) -> None:
    async def run() -> None:
        entries = MemoryLedger(entries_)
        index = ClaimPodIndex(entries, claims, pods)
        index.start()
        try:
            async with asyncio.timeout(60):
                await scenario(index, entries)
        finally:
            await index.stop()

    asyncio.run(run())


def test_pods_of_claims_are_known_from_the_start_and_each_prepare() -> None:
    pods, claims = FakePods({"p": pod(600)}), ClaimsApi({"c": allocated()})

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["p"])
        # A second claim is prepared; the first is unprepared.
        second = allocated("d")
        second["metadata"]["name"] = "d"
        second["status"]["reservedFor"] = [{"resource": "pods", "name": "q", "uid": "q"}]
        claims.claims["d"] = second
        pods.pods["q"] = pod(5) | {"metadata": {"name": "q", "uid": "q"}}
        entries.add(entry("d", "d"))
        index.prepared("d", "ns", "d")
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["p", "q"])
        entries.remove(entry("c"))
        assert [pod_.name for pod_ in index] == ["q"]

    run_index(claims, pods, scenario, entry("c"))


def test_failed_reads_are_retried_and_known_pods_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pods, claims = FakePods({"p": pod(600)}), ClaimsApi({"c": allocated()}, [UnavailableError("away")])

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: list(index))
        claims.claims.clear()
        index.refresh()
        await eventually_async(lambda: claims.reads == 3)
        assert [pod_.name for pod_ in index] == ["p"], "known pods are kept"

    run_index(claims, pods, scenario, entry("c"))


def test_a_missing_claim_does_not_affect_other_claims() -> None:
    pods, claims = FakePods({"p": pod(600)}), ClaimsApi({"c": allocated()})

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["p"])

    run_index(claims, pods, scenario, entry("gone", "gone"), entry("c"))


def test_another_claim_or_pod_with_that_name_is_ignored() -> None:
    last = allocated("e")
    last["status"]["reservedFor"] = [{"resource": "pods", "name": "q", "uid": "q"}]
    pods = FakePods(
        {
            "p": pod() | {"metadata": {"name": "p", "uid": "another"}},
            "q": pod() | {"metadata": {"name": "q", "uid": "q"}},
        }
    )
    claims = ClaimsApi({"c": allocated(), "d": allocated("another"), "e": last})

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["q"])
        assert claims.reads == 3, "they are read in this order"

    run_index(claims, pods, scenario, entry("c"), entry("d", "d"), entry("e", "e"))


class ForbiddenPods(FakePods):
    """The permission to read pods takes effect after some requests."""

    def __init__(self, pods: dict[str, Any], *, refusals: int) -> None:
        super().__init__(pods)
        self.refusals = refusals

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        if self.refusals > 0:
            self.refusals -= 1
            raise ForbiddenError("no")
        return await super().get(namespace, name)


def test_a_permission_that_takes_effect_late_needs_no_other_claim(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.status.permission.FIRST_RETRY_S", 0.01)
    pods = ForbiddenPods({"p": pod(600)}, refusals=3)

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["p"])

    run_index(ClaimsApi({"c": allocated()}), pods, scenario, entry("c"))
    warnings = logged_by(caplog, "dra_agent", least=logging.WARNING)
    assert [record.message for record in warnings] == ["grace periods of pods are not known"]


class OneForbidden(ClaimsApi):
    """The Node authorizer refuses the claim of a pod that was removed by force."""

    async def get(
        self, kind: Kind, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        if name == "c":
            raise ForbiddenError("no relationship found")
        return await super().get(kind, name, namespace, timeout=timeout)


def test_a_claim_that_may_not_be_read_does_not_affect_other_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.status.permission.FIRST_RETRY_S", 0.01)
    claims = OneForbidden({"c": allocated(), "d": allocated("d"), "e": allocated("e")})

    async def scenario(index: ClaimPodIndex, entries: MemoryLedger) -> None:
        await eventually_async(lambda: [pod_.name for pod_ in index] == ["p", "p"])

    run_index(claims, FakePods({"p": pod(600)}), scenario, entry("c"), entry("d", "d"), entry("e", "e"))


def notice(seconds: float | None) -> ReclaimState:
    deadline = None if seconds is None else NOW + timedelta(seconds=seconds)
    return apply(ReclaimState("b"), Signal("aws.spot", "notice", "e", "w", deadline), NOW)


def evict_early(
    *claim_pods: ClaimPod, seconds: float | None = 30, mode: EvictionMode = "auto", pods: FakePods | None = None
) -> FakePods:
    pods = pods or FakePods()

    async def run() -> None:
        actions = PodActions(pods, Counter())
        evictions = EarlyEvictor(claim_pods, actions, mode=mode, node="n", driver=DRIVER, now=lambda: NOW).evictions(
            notice(seconds)
        )
        if evictions is not None:
            await evictions

    asyncio.run(run())
    return pods


def claim_pod(grace: int, uid: str = "u", claim_: dict[str, Any] | None = None, **more: Any) -> ClaimPod:
    return ClaimPod("ns", f"pod-{uid}", uid, pod(grace, **more), claim_ or claim())


@pytest.mark.parametrize(("mode", "method"), [("auto", "evict"), ("evict", "evict"), ("delete", "evict")])
def test_only_pods_with_a_long_grace_period_are_evicted(mode: EvictionMode, method: str) -> None:
    pods = evict_early(claim_pod(600, "long"), claim_pod(28, "fits"), claim_pod(29, "nearly"), mode=mode)
    assert sorted(pods.done) == [(method, "pod-long", 28), (method, "pod-nearly", 28)]


def test_a_pod_with_two_claims_is_evicted_once() -> None:
    assert len(evict_early(claim_pod(600), claim_pod(600)).done) == 1


@pytest.mark.parametrize(
    "exempt",
    [
        claim_pod(600, **controlled_by("DaemonSet")),
        claim_pod(600, annotations={f"{DRIVER}/reclaim": "keep"}),
        claim_pod(600, claim_=claim(tolerates())),
        claim_pod(600, claim_=claim(tolerates(tolerationSeconds=20))),
        claim_pod(600, node="other"),
    ],
)
def test_exempt_pods_are_not_evicted_early(exempt: ClaimPod) -> None:
    assert evict_early(exempt).done == []


def test_without_a_deadline_or_in_taint_mode_nothing_is_evicted() -> None:
    assert evict_early(claim_pod(600), seconds=None).done == []
    assert evict_early(claim_pod(600), mode="taint").done == []


def test_a_disruption_budget_does_not_extend_the_deadline() -> None:
    # The taint does not respect budgets either; waiting for one would cost the whole grace period.
    pods = evict_early(claim_pod(600), pods=FakePods(errors=[ThrottledError("none")]))
    assert pods.done == [("delete", "pod-u", 28)]


def test_a_failed_eviction_does_not_affect_other_pods(caplog: pytest.LogCaptureFixture) -> None:
    pods = evict_early(
        claim_pod(600, "a"), claim_pod(600, "b"), mode="evict", pods=FakePods(errors=[UnavailableError("away")])
    )
    assert [name for _, name, _ in pods.done] == ["pod-b"]
    assert sum("failed to evict a pod" in record.message for record in caplog.records) == 1
