"""Pods that the taint does not evict: which pods are evicted or deleted, when, and with which grace period."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.errors import AgentError
from dra_agent.kube_client import (
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
    connect,
)
from dra_agent.kube_client.kinds import PODS
from dra_agent.reclaim.eviction_policy import EvictionContext, EvictionMode, decide
from dra_agent.reclaim.evictor import Evictor, PodActions
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from dra_agent.reclaim.status import ClaimReleaseStatus
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from reclaim.doubles import ClaimsApi, FakePods, FixedReclaim, MemoryLedger

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)
DRIVER = "dra-agent.internal"
BEFORE_TAINT = timedelta(seconds=10)


def context(seconds: float = 3, *, mode: EvictionMode = "auto", deadline: float | None = 120) -> EvictionContext:
    end = None if deadline is None else T0 + timedelta(seconds=deadline)
    return EvictionContext(T0 + timedelta(seconds=seconds), T0, end, "n", DRIVER, mode)


def pod(grace: int | None = 30, *, node: str = "n", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", **metadata},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": grace},
        "status": {"phase": phase},
    }


def claim(*tolerations: dict[str, Any], driver: str = DRIVER, pool: str = "n/gpu") -> dict[str, Any]:
    result = {"driver": driver, "pool": pool, "device": "d", "tolerations": list(tolerations)}
    consumer = {"resource": "pods", "name": "p", "uid": "u"}
    return {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}}


@pytest.mark.parametrize("mode", ["auto", "evict", "delete"])
def test_the_longest_periods_of_the_api_are_decided_about(mode: EvictionMode) -> None:
    """64 bits of seconds are beyond the calendar."""
    longest = (1 << 63) - 1
    toleration = {"key": f"{DRIVER}/reclaim", "operator": "Exists", "tolerationSeconds": longest}
    assert decide(pod(longest), claim(toleration), context(mode=mode)).act == "wait"
    for deadline in (120, None):
        found = decide(pod(longest), claim(), context(60, mode=mode, deadline=deadline))
        assert found.act in ("evict", "delete") and (deadline is None or found.grace == 58)


def controlled_by(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "controller": True}]}


@pytest.mark.parametrize(
    ("object_", "reason"),
    [
        (pod(node="other"), "not on this node"),
        (pod(phase="Succeeded"), "has ended"),
        (pod(phase="Failed"), "has ended"),
        (pod(**controlled_by("DaemonSet")), "DaemonSet"),
        (pod(annotations={"kubernetes.io/config.mirror": "x"}), "mirror"),
        (pod(annotations={f"{DRIVER}/reclaim": "keep"}), "annotation"),
        ({}, "not on this node"),
    ],
)
@pytest.mark.parametrize("mode", ["taint", "auto", "evict", "delete"])
def test_exempt_pods_are_never_evicted(object_: dict[str, Any], reason: str, mode: EvictionMode) -> None:
    for seconds in (0, 3, 117, 200):
        decision = decide(object_, claim(), context(seconds, mode=mode))
        assert decision.act == "leave" and reason in decision.why


def test_taint_mode_leaves_all_pods_to_the_taint() -> None:
    for seconds in (0, 3, 117, 200):
        assert decide(pod(), claim(), context(seconds, mode="taint")).act == "leave"


@pytest.mark.parametrize(
    ("seconds", "mode", "act", "grace"),
    [
        (1, "auto", "wait", None),  # the taint acts first
        (3, "auto", "evict", None),
        (3, "evict", "evict", None),
        (3, "delete", "delete", 30),
        (84, "auto", "delete", 30),  # 30 s of grace period and 5 s before it
        (100, "auto", "delete", 18),  # the remaining time, less 2 s for the kubelet
        (80, "evict", "evict", None),
        (100, "evict", "evict", 18),  # the kubelet does not shorten it later
        (117.5, "auto", "delete", 1),  # never zero
        (119, "auto", "delete", 1),
        (500, "delete", "delete", 1),
    ],
)
def test_the_time_determines_eviction_or_deletion(
    seconds: float, mode: EvictionMode, act: str, grace: int | None
) -> None:
    decision = decide(pod(), claim(), context(seconds, mode=mode))
    assert (decision.act, decision.grace) == (act, grace)


def test_without_a_deadline_a_pod_keeps_its_grace_period() -> None:
    assert decide(pod(), claim(), context(1000, mode="auto", deadline=None)).act == "evict"
    decision = decide(pod(45), claim(), context(1000, mode="delete", deadline=None))
    assert (decision.act, decision.grace) == ("delete", 45)


def test_a_pod_that_kubernetes_does_not_evict_is_evicted_at_once() -> None:
    object_ = pod()
    object_["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c"}
    assert decide(object_, claim(), context(0)).act == "evict"


def tolerates(**more: Any) -> dict[str, Any]:
    return {"key": f"{DRIVER}/reclaim", "operator": "Exists", "effect": "NoExecute", **more}


@pytest.mark.parametrize(
    ("object_", "seconds", "act"),
    [
        (claim(tolerates()), 100, "leave"),
        (claim({"operator": "Exists"}), 100, "leave"),
        (claim(tolerates(tolerationSeconds=20)), 10, "wait"),
        (claim(tolerates(tolerationSeconds=20)), 23, "evict"),
        (claim(tolerates(tolerationSeconds=20), tolerates(tolerationSeconds=90)), 23, "evict"),
        (claim(tolerates(effect="NoSchedule")), 10, "evict"),
        (claim(tolerates(key="other")), 10, "evict"),
        (claim(tolerates(operator="Equal", value="notice")), 10, "leave"),
        (claim(tolerates(operator="Equal", value="hint")), 10, "evict"),
        (claim(tolerates(), driver="another"), 10, "evict"),
        (claim(tolerates(), pool="other/gpu"), 10, "evict"),
    ],
)
def test_tolerations_of_the_claim_are_respected(object_: dict[str, Any], seconds: float, act: str) -> None:
    assert decide(pod(), object_, context(seconds)).act == act


def test_the_device_with_the_shortest_toleration_counts() -> None:
    mixed = claim(tolerates())
    results = mixed["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": "e", "tolerations": []})
    assert decide(pod(), mixed, context(10)).act == "evict"


def deleted(deleted_at: float, grace: int) -> dict[str, Any]:
    """Return a pod that was deleted at a time; deletionTimestamp is the end of its grace period, as in the API."""
    end = T0 + timedelta(seconds=deleted_at + grace)
    return pod(grace, deletionTimestamp=end.strftime("%Y-%m-%dT%H:%M:%SZ"), deletionGracePeriodSeconds=grace)


@pytest.mark.parametrize(
    ("mode", "act", "evict_first"), [("auto", "delete", True), ("delete", "delete", True), ("evict", "evict", False)]
)
def test_a_pod_with_a_long_grace_period_is_not_left_to_the_taint(
    mode: EvictionMode, act: str, evict_first: bool
) -> None:
    decision = decide(pod(600), claim(), context(0.1, mode=mode, deadline=30))
    assert (decision.act, decision.grace, decision.evict_first) == (act, 27, evict_first)
    assert "longer than the remaining time" in decision.why
    assert decide(pod(600), claim(), context(0.1, mode="taint", deadline=30)).act == "leave"
    assert decide(pod(600), claim(), context(0.1, mode=mode, deadline=None)).act == "wait", (
        "the remaining time is unknown"
    )


def test_a_tolerating_pod_is_evicted_just_before_its_time_ends() -> None:
    object_ = claim(tolerates(tolerationSeconds=20))
    # kube-controller-manager counts from the whole second of the notice, up to 1 s earlier.
    assert decide(pod(600), object_, context(17, deadline=60)).act == "wait"
    decision = decide(pod(600), object_, context(18, deadline=60))
    assert (decision.act, decision.grace) == ("delete", 40)
    assert decide(pod(30), object_, context(18, deadline=60)).act == "wait", "its grace period fits"
    assert decide(pod(600), claim(tolerates()), context(18, deadline=60)).act == "leave"


@pytest.mark.parametrize(
    ("object_", "mode", "act", "grace"),
    [
        (deleted(2, 30), "auto", "wait", None),
        (deleted(2, 600), "auto", "delete", 115),
        (deleted(2, 600), "delete", "delete", 115),
        (deleted(2, 600), "evict", "wait", None),
        (deleted(2, 600), "taint", "leave", None),
    ],
)
def test_a_grace_period_beyond_the_deadline_is_shortened(
    object_: dict[str, Any], mode: EvictionMode, act: str, grace: int | None
) -> None:
    decision = decide(object_, claim(), context(3, mode=mode))
    assert (decision.act, decision.grace) == (act, grace)


def test_a_grace_period_is_shortened_once() -> None:
    decision = decide(deleted(2, 600), claim(), context(3))
    assert decision.grace is not None
    for seconds in (4, 8, 50, 110):
        assert decide(deleted(3, decision.grace), claim(), context(seconds)).act == "wait"


@given(
    seconds=st.floats(0, 1000),
    deadline=st.none() | st.floats(0, 1000),
    grace=st.none() | st.integers(0, 3600),
    mode=st.sampled_from(["auto", "evict", "delete"]),
    deleted_at=st.none() | st.integers(0, 900),
)
def test_no_grace_period_is_zero_or_beyond_the_deadline(
    seconds: float, deadline: float | None, grace: int | None, mode: EvictionMode, deleted_at: int | None
) -> None:
    object_ = pod(grace) if deleted_at is None else deleted(deleted_at, grace or 30)
    context_ = context(seconds, mode=mode, deadline=deadline)
    decision = decide(object_, claim(), context_)
    assert decision.act != "delete" or decision.grace is not None
    if decision.grace is not None:
        assert decision.act in ("evict", "delete") and decision.grace >= 1
        if context_.remaining is not None:
            assert decision.grace <= max(1, context_.remaining.total_seconds())


def run_evictor(
    pods: FakePods,
    scenario: Callable[[ReleaseTracker], Awaitable[None]],
    mode: EvictionMode = "auto",
    deadline: float = 60,
) -> Counter[tuple[str, str]]:
    """Run an evictor on one claim with a notice 10 s ago; its clock stands still."""
    now = datetime.now(UTC)
    signal = Signal("operator", "notice", "operator", "test", now + timedelta(seconds=deadline))
    state = apply(ReclaimState("b"), signal, now - timedelta(seconds=10))
    counts: Counter[tuple[str, str]] = Counter()

    async def run() -> None:
        tracker = ReleaseTracker(MemoryLedger(), ClaimsApi(), node="n", driver=DRIVER)
        tracker.records["c"] = ClaimReleaseStatus("c", "ns", "claim", now)
        tracker.claims["c"] = claim()
        actions = PodActions(pods, counts)
        evictor = Evictor(actions, tracker, FixedReclaim(state), mode=mode, node="n", driver=DRIVER, now=lambda: now)
        task = asyncio.create_task(evictor.run())
        try:
            async with asyncio.timeout(60):
                await scenario(tracker)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return counts


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.evictor.POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr("dra_agent.reclaim.evictor.RETRY_AFTER_S", 0.2)


def wait_until(condition: Callable[[], object]) -> Callable[[ReleaseTracker], Awaitable[None]]:
    async def scenario(tracker: ReleaseTracker) -> None:
        await eventually_async(condition)

    return scenario


def test_a_pod_is_evicted_without_rapid_retries() -> None:
    evicted_at: list[float] = []

    class TimedPods(FakePods):
        async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
            await super().evict(namespace, name, uid, grace)
            evicted_at.append(asyncio.get_running_loop().time())

    pods = TimedPods({"p": pod()})
    counts = run_evictor(pods, wait_until(lambda: len(evicted_at) >= 3))
    assert min(later - earlier for earlier, later in itertools.pairwise(evicted_at)) >= 0.2
    assert set(pods.done) == {("evict", "p", None)} and counts["evict", "ok"] == len(pods.done)


def test_an_eviction_refused_by_a_budget_is_retried() -> None:
    pods = FakePods({"p": pod()}, errors=[ThrottledError("budget"), ThrottledError("budget")])
    counts = run_evictor(pods, wait_until(lambda: pods.done))
    assert counts["evict", "budget"] == 2 and counts["evict", "ok"] == len(pods.done)


@pytest.mark.parametrize(("error", "result"), [(ThrottledError("no"), "budget"), (UnavailableError("two"), "error")])
def test_near_the_deadline_a_budget_is_ignored(error: AgentError, result: str) -> None:
    pods = FakePods({"p": pod(10)}, errors=[error])
    counts = run_evictor(pods, wait_until(lambda: pods.done), deadline=8)
    (act, _, grace) = pods.done[0]
    assert act == "delete" and grace == 6
    assert counts["evict", result] == 1 and counts["delete", "ok"] >= 1


def test_near_the_deadline_a_pod_is_still_evicted() -> None:
    # An eviction sets the condition DisruptionTarget for the podFailurePolicy of Jobs; a deletion does not.
    pods = FakePods({"p": pod(10)})
    counts = run_evictor(pods, wait_until(lambda: pods.done), deadline=8)
    (act, _, grace) = pods.done[0]
    assert act == "evict" and grace == 6
    assert counts["evict", "ok"] >= 1 and not counts["delete", "ok"]


def test_in_delete_mode_a_pod_is_evicted_first() -> None:
    # A Job whose podFailurePolicy ignores DisruptionTarget would count a deletion as a failure.
    pods = FakePods({"p": pod(10)})
    counts = run_evictor(pods, wait_until(lambda: pods.done), mode="delete", deadline=60)
    assert pods.done[0] == ("evict", "p", 10) and counts["evict", "ok"]


@pytest.mark.parametrize(
    "error", [ForbiddenError("no"), ThrottledError("budget"), UnavailableError("two"), InvalidObjectError("webhook")]
)
def test_a_refused_eviction_does_not_delay_a_deletion(error: AgentError) -> None:
    pods = FakePods({"p": pod(10)}, errors=[error])
    counts = run_evictor(pods, wait_until(lambda: pods.done), mode="delete", deadline=60)
    assert pods.done[0] == ("delete", "p", 10)
    assert counts["delete", "ok"] and not counts["delete", "error"]


def test_a_started_grace_period_is_shortened_by_deletion() -> None:
    end = (datetime.now(UTC) + timedelta(seconds=50)).strftime("%Y-%m-%dT%H:%M:%SZ")
    terminating = pod(60)
    terminating["metadata"] |= {"deletionTimestamp": end, "deletionGracePeriodSeconds": 60}
    pods = FakePods({"p": terminating})
    run_evictor(pods, wait_until(lambda: pods.done), deadline=8)
    assert {act for act, _, _ in pods.done} == {"delete"}


def test_another_pod_with_that_name_is_not_evicted() -> None:
    pods = FakePods({"p": pod() | {"metadata": {"name": "p", "uid": "another"}}})

    run_evictor(pods, wait_until(lambda: pods.reads >= 3), mode="delete")
    assert pods.done == []


def test_an_unprepared_claim_is_no_longer_evicted() -> None:
    pods = FakePods({"p": pod(), "other": named("other")})

    async def scenario(tracker: ReleaseTracker) -> None:
        tracker.records["c"].unprepared = datetime.now(UTC)
        before = pods.done.count(("evict", "p", None))
        tracker.records["d"] = ClaimReleaseStatus("d", "ns", "other", datetime.now(UTC))
        tracker.claims["d"] = used_by("other")
        await eventually_async(lambda: pods.done.count(("evict", "other", None)) >= 3)
        assert pods.done.count(("evict", "p", None)) <= before + 1

    run_evictor(pods, scenario)


def test_a_permission_to_read_pods_that_takes_effect_late_is_used(caplog: pytest.LogCaptureFixture) -> None:
    class ForbiddenPods(FakePods):
        async def get(self, namespace: str, name: str) -> dict[str, Any]:
            found = await super().get(namespace, name)
            if self.reads <= 3:
                raise ForbiddenError("no")
            return found

    pods = ForbiddenPods({"p": pod()})
    run_evictor(pods, wait_until(lambda: pods.done))
    assert pods.done[0] == ("evict", "p", None)
    assert sum("are not evicted" in record.message for record in caplog.records) == 1, "it is logged once"


@dataclass
class GuardedPods(FakePods):
    """An admission webhook denies the eviction of one pod."""

    refused_at: list[float] = field(default_factory=list)
    """In seconds of the event loop."""

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        if name == "guarded":
            self.refused_at.append(asyncio.get_running_loop().time())
            self.done.append(("refused", name, None))
            raise ForbiddenError('admission webhook "guard" denied the request')
        await super().evict(namespace, name, uid, grace)


def used_by(*names: str) -> dict[str, Any]:
    claim_ = claim()
    claim_["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name} for name in names]
    return claim_


def named(name: str) -> dict[str, Any]:
    return pod() | {"metadata": {"name": name, "namespace": "ns", "uid": name}}


def test_a_denied_eviction_does_not_affect_other_pods(caplog: pytest.LogCaptureFixture) -> None:
    pods = GuardedPods({"guarded": named("guarded"), "other": named("other")})

    async def scenario(tracker: ReleaseTracker) -> None:
        tracker.claims["c"] = used_by("guarded", "other")
        await eventually_async(lambda: len(pods.refused_at) >= 3)

    counts = run_evictor(pods, scenario)
    assert ("evict", "other", None) in pods.done
    denials = pods.done.count(("refused", "guarded", None))
    delays = [later - earlier for earlier, later in itertools.pairwise(pods.refused_at)]
    assert min(delays) >= 0.2, "retried at the usual interval"
    assert counts["evict", "error"] == denials
    assert sum("eviction of a pod is forbidden" in record.message for record in caplog.records) == 1


def test_a_hanging_request_does_not_delay_other_pods() -> None:
    class HangingPods(FakePods):
        async def get(self, namespace: str, name: str) -> dict[str, Any]:
            if name == "hangs":
                await asyncio.Event().wait()
            return await super().get(namespace, name)

    pods = HangingPods({"other": named("other")})

    async def scenario(tracker: ReleaseTracker) -> None:
        tracker.claims["c"] = used_by("hangs", "other")
        await wait_until(lambda: pods.done)(tracker)

    run_evictor(pods, scenario)


def test_a_pod_with_two_claims_is_evicted_once_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.evictor.RETRY_AFTER_S", 3600.0)  # no second round, even on a slow machine
    pods = FakePods({"p": pod(), "later": named("later")})

    async def scenario(tracker: ReleaseTracker) -> None:
        tracker.records["d"] = ClaimReleaseStatus("d", "ns", "other", datetime.now(UTC))
        tracker.claims["d"] = claim(tolerates())
        await eventually_async(lambda: pods.done)
        tracker.records["e"] = ClaimReleaseStatus("e", "ns", "later", datetime.now(UTC))
        tracker.claims["e"] = used_by("later")
        await eventually_async(lambda: ("evict", "later", None) in pods.done)

    run_evictor(pods, scenario)
    assert pods.done == [("evict", "p", None), ("evict", "later", None)], (
        "one of its claims does not tolerate the taint"
    )


def test_a_pod_that_waits_for_a_refused_claim_is_evicted() -> None:
    waiting = pod(phase="Pending")
    pods = FakePods({"p": waiting})

    async def scenario(tracker: ReleaseTracker) -> None:
        tracker.records["c"].refused = datetime.now(UTC)
        await wait_until(lambda: pods.done)(tracker)

    run_evictor(pods, scenario)


def test_an_error_of_a_pod_is_retried() -> None:
    pods = FakePods({"p": pod()}, errors=[UnavailableError("away"), UnavailableError("away")])
    counts = run_evictor(pods, wait_until(lambda: pods.done))
    assert counts["evict", "error"] == 2


def test_deletions_have_a_uid_precondition(fake_api: FakeApi, tmp_path: Path) -> None:
    from dra_agent.reclaim.claim_pods import PodClient

    created = fake_api.put("pods", {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": "n"}})
    uid = created["metadata"]["uid"]

    async def scenario() -> None:
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            pods = PodClient(api)
            assert (await pods.get("ns", "p"))["metadata"]["uid"] == uid
            with pytest.raises(AgentError):
                await pods.delete("ns", "p", "another", 3)
            await pods.delete("ns", "p", uid, 3)
            with pytest.raises(NotFoundError):
                await api.get(PODS, "p", "ns")

    asyncio.run(scenario())
    bodies = [request.body for request in fake_api.writes()]
    assert bodies[-1]["gracePeriodSeconds"] == 3 and bodies[-1]["preconditions"] == {"uid": uid}


def test_an_agent_without_leadership_evicts_nothing() -> None:
    pods = FakePods({"p": pod()})
    now = datetime.now(UTC)
    state = apply(
        ReclaimState("b"), Signal("operator", "notice", "o", "t", now + timedelta(seconds=60)), now - BEFORE_TAINT
    )
    active = False
    checks = 0

    def is_leader() -> bool:
        nonlocal checks
        checks += 1
        return active

    async def run() -> None:
        nonlocal active
        tracker = ReleaseTracker(MemoryLedger(), ClaimsApi(), node="n", driver=DRIVER)
        tracker.records["c"] = ClaimReleaseStatus("c", "ns", "claim", now)
        tracker.claims["c"] = claim()
        actions = PodActions(pods, Counter())
        evictor = Evictor(
            actions, tracker, FixedReclaim(state), mode="auto", node="n", driver=DRIVER, is_leader=is_leader
        )
        task = asyncio.create_task(evictor.run())
        await eventually_async(lambda: checks >= 3)
        assert pods.done == []
        active = True
        await eventually_async(lambda: pods.done)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert pods.done
