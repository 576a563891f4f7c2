"""Pods that the taint does not move: who is touched, how, when, and who never is."""

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
from dra_agent.reclaim.eviction_policy import EvictionContext, Mode, decide
from dra_agent.reclaim.evictor import Evictor, PodActions
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import ReclaimState, apply
from dra_agent.reclaim.status import ClaimReleaseStatus
from eventually import eventually_async
from fake_apiserver.fake import FakeApi
from reclaim.doubles import ClaimsApi, MemoryLedger, Pods

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)
DRIVER = "dra-agent.internal"
PATIENT = timedelta(seconds=10)


def moment(seconds: float = 3, *, mode: Mode = "auto", deadline: float | None = 120) -> EvictionContext:
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


def controlled_by(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "controller": True}]}


@pytest.mark.parametrize(
    ("given", "why"),
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
def test_who_is_never_touched(given: dict[str, Any], why: str, mode: Mode) -> None:
    for seconds in (0, 3, 117, 200):
        decision = decide(given, claim(), moment(seconds, mode=mode))
        assert decision.act == "leave" and why in decision.why


def test_by_default_everything_is_left_to_the_taint() -> None:
    for seconds in (0, 3, 117, 200):
        assert decide(pod(), claim(), moment(seconds, mode="taint")).act == "leave"


@pytest.mark.parametrize(
    ("seconds", "mode", "act", "grace"),
    [
        (1, "auto", "wait", None),  # the taint has its time first
        (3, "auto", "evict", None),
        (3, "evict", "evict", None),
        (3, "delete", "delete", 30),
        (84, "auto", "delete", 30),  # 30 s of grace and 5 s before it
        (100, "auto", "delete", 18),  # what is left, less the 2 s that the kubelet needs
        (80, "evict", "evict", None),
        (100, "evict", "evict", 18),  # the kubelet will not shorten it later
        (117.5, "auto", "delete", 1),  # never zero
        (119, "auto", "delete", 1),
        (500, "delete", "delete", 1),
    ],
)
def test_when_a_pod_is_evicted_and_when_deleted(seconds: float, mode: Mode, act: str, grace: int | None) -> None:
    decision = decide(pod(), claim(), moment(seconds, mode=mode))
    assert (decision.act, decision.grace) == (act, grace)


def test_without_a_deadline_a_pod_keeps_its_grace() -> None:
    assert decide(pod(), claim(), moment(1000, mode="auto", deadline=None)).act == "evict"
    decision = decide(pod(45), claim(), moment(1000, mode="delete", deadline=None))
    assert (decision.act, decision.grace) == ("delete", 45)


def test_what_kubernetes_overlooks_is_not_waited_for() -> None:
    given = pod()
    given["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "c"}
    assert decide(given, claim(), moment(0)).act == "evict"


def tolerates(**more: Any) -> dict[str, Any]:
    return {"key": f"{DRIVER}/reclaim", "operator": "Exists", "effect": "NoExecute", **more}


@pytest.mark.parametrize(
    ("given", "seconds", "act"),
    [
        (claim(tolerates()), 100, "leave"),
        (claim({"operator": "Exists"}), 100, "leave"),
        (claim(tolerates(tolerationSeconds=20)), 10, "wait"),
        (claim(tolerates(tolerationSeconds=20)), 23, "evict"),
        (claim(tolerates(effect="NoSchedule")), 10, "evict"),
        (claim(tolerates(key="other")), 10, "evict"),
        (claim(tolerates(operator="Equal", value="notice")), 10, "leave"),
        (claim(tolerates(operator="Equal", value="hint")), 10, "evict"),
        (claim(tolerates(), driver="another"), 10, "evict"),
        (claim(tolerates(), pool="other/gpu"), 10, "evict"),
    ],
)
def test_tolerations_of_the_claim_are_kept(given: dict[str, Any], seconds: float, act: str) -> None:
    assert decide(pod(), given, moment(seconds)).act == act


def test_the_least_patient_device_counts() -> None:
    both = claim(tolerates())
    results = both["status"]["allocation"]["devices"]["results"]
    results.append({**results[0], "device": "e", "tolerations": []})
    assert decide(pod(), both, moment(10)).act == "evict"


def deleted(at: float, grace: int) -> dict[str, Any]:
    """A pod that was deleted at a moment; its deletionTimestamp is the end of its grace, as in the API."""
    end = T0 + timedelta(seconds=at + grace)
    return pod(grace, deletionTimestamp=end.strftime("%Y-%m-%dT%H:%M:%SZ"), deletionGracePeriodSeconds=grace)


@pytest.mark.parametrize(
    ("mode", "act", "evict_first"), [("auto", "delete", True), ("delete", "delete", True), ("evict", "evict", False)]
)
def test_a_grace_that_is_too_long_is_not_left_to_the_taint(mode: Mode, act: str, evict_first: bool) -> None:
    decision = decide(pod(600), claim(), moment(0.1, mode=mode, deadline=30))
    assert (decision.act, decision.grace, decision.evict_first) == (act, 27, evict_first)
    assert "longer than the host has" in decision.why
    assert decide(pod(600), claim(), moment(0.1, mode="taint", deadline=30)).act == "leave"
    assert decide(pod(600), claim(), moment(0.1, mode=mode, deadline=None)).act == "wait", "nobody knows what is left"


def test_who_asked_for_time_is_asked_just_before_it_is_over() -> None:
    given = claim(tolerates(tolerationSeconds=20))
    # kube-controller-manager counts from the notice's whole second, which is up to one before.
    assert decide(pod(600), given, moment(17, deadline=60)).act == "wait"
    decision = decide(pod(600), given, moment(18, deadline=60))
    assert (decision.act, decision.grace) == ("delete", 40)
    assert decide(pod(30), given, moment(18, deadline=60)).act == "wait", "it has time"
    assert decide(pod(600), claim(tolerates()), moment(18, deadline=60)).act == "leave"


@pytest.mark.parametrize(
    ("given", "mode", "act", "grace"),
    [
        (deleted(2, 30), "auto", "wait", None),
        (deleted(2, 600), "auto", "delete", 115),
        (deleted(2, 600), "delete", "delete", 115),
        (deleted(2, 600), "evict", "wait", None),
        (deleted(2, 600), "taint", "leave", None),
    ],
)
def test_a_grace_that_is_longer_than_the_host_has_is_shortened(
    given: dict[str, Any], mode: Mode, act: str, grace: int | None
) -> None:
    decision = decide(given, claim(), moment(3, mode=mode))
    assert (decision.act, decision.grace) == (act, grace)


def test_a_grace_is_shortened_once() -> None:
    decision = decide(deleted(2, 600), claim(), moment(3))
    assert decision.grace is not None
    for seconds in (4, 8, 50, 110):
        assert decide(deleted(3, decision.grace), claim(), moment(seconds)).act == "wait"


@given(
    seconds=st.floats(0, 1000),
    deadline=st.none() | st.floats(0, 1000),
    grace=st.none() | st.integers(0, 3600),
    mode=st.sampled_from(["auto", "evict", "delete"]),
    at=st.none() | st.integers(0, 900),
)
def test_no_grace_is_ever_zero_or_longer_than_what_is_left(
    seconds: float, deadline: float | None, grace: int | None, mode: Mode, at: int | None
) -> None:
    given = pod(grace) if at is None else deleted(at, grace or 30)
    when = moment(seconds, mode=mode, deadline=deadline)
    decision = decide(given, claim(), when)
    assert decision.act != "delete" or decision.grace is not None
    if decision.grace is not None:
        assert decision.act in ("evict", "delete") and decision.grace >= 1
        if when.remaining is not None:
            assert decision.grace <= max(1, when.remaining.total_seconds())


def work(
    pods: Pods, story: Callable[[ReleaseTracker], Awaitable[None]], mode: Mode = "auto", deadline: float = 60
) -> Counter[tuple[str, str]]:
    """Run an evictor on one claim whose notice came ten seconds ago, by a clock that stands still."""
    now = datetime.now(UTC)
    reading = Signal("operator", "notice", "operator", "test", now + timedelta(seconds=deadline))
    state = apply(ReclaimState("b"), reading, now - timedelta(seconds=10))
    counted: Counter[tuple[str, str]] = Counter()

    async def play() -> None:
        release = ReleaseTracker(MemoryLedger(), ClaimsApi(), node="n", driver=DRIVER)
        release.records["c"] = ClaimReleaseStatus("c", "ns", "claim", now)
        release.claims["c"] = claim()
        mover = PodActions(pods, counted)
        evictor = Evictor(mover, release, lambda: state, mode=mode, node="n", driver=DRIVER, now=lambda: now)
        task = asyncio.create_task(evictor.run())
        try:
            async with asyncio.timeout(60):
                await story(release)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    return counted


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_agent.reclaim.evictor.POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr("dra_agent.reclaim.evictor.RETRY_AFTER_S", 0.2)


def until(what: Callable[[], object]) -> Callable[[ReleaseTracker], Awaitable[None]]:
    async def story(release: ReleaseTracker) -> None:
        await eventually_async(what)

    return story


def test_a_pod_is_evicted_and_not_hammered() -> None:
    pods = Pods({"p": pod()})

    async def story(release: ReleaseTracker) -> None:
        await asyncio.sleep(0.3)

    counted = work(pods, story)
    assert 1 <= len(pods.done) <= 3 and set(pods.done) == {("evict", "p", None)}
    assert counted["evict", "ok"] == len(pods.done)


def test_a_budget_that_allows_no_disruption_is_asked_again() -> None:
    pods = Pods({"p": pod()}, errors=[ThrottledError("budget"), ThrottledError("budget")])
    counted = work(pods, until(lambda: pods.done))
    assert counted["evict", "budget"] == 2 and counted["evict", "ok"] == len(pods.done)


@pytest.mark.parametrize(("error", "result"), [(ThrottledError("no"), "budget"), (UnavailableError("two"), "error")])
def test_near_the_deadline_a_budget_has_no_say(error: AgentError, result: str) -> None:
    pods = Pods({"p": pod(10)}, errors=[error])
    counted = work(pods, until(lambda: pods.done), deadline=8)
    (act, _, grace) = pods.done[0]
    assert act == "delete" and grace == 6
    assert counted["evict", result] == 1 and counted["delete", "ok"] >= 1


def test_near_the_deadline_a_pod_still_learns_that_it_is_disrupted() -> None:
    # An eviction sets the condition DisruptionTarget, by which a Job's podFailurePolicy knows it; deletion does not.
    pods = Pods({"p": pod(10)})
    counted = work(pods, until(lambda: pods.done), deadline=8)
    (act, _, grace) = pods.done[0]
    assert act == "evict" and grace == 6
    assert counted["evict", "ok"] >= 1 and not counted["delete", "ok"]


def test_who_is_deleted_at_once_still_learns_that_it_is_disrupted() -> None:
    # A Job whose podFailurePolicy ignores DisruptionTarget would count it as a failure.
    pods = Pods({"p": pod(10)})
    counted = work(pods, until(lambda: pods.done), mode="delete", deadline=60)
    assert pods.done[0] == ("evict", "p", 10) and counted["evict", "ok"]


@pytest.mark.parametrize(
    "error", [ForbiddenError("no"), ThrottledError("budget"), UnavailableError("two"), InvalidObjectError("webhook")]
)
def test_what_forbids_an_eviction_does_not_hold_up_a_deletion(error: AgentError) -> None:
    pods = Pods({"p": pod(10)}, errors=[error])
    counted = work(pods, until(lambda: pods.done), mode="delete", deadline=60)
    assert pods.done[0] == ("delete", "p", 10)
    assert counted["delete", "ok"] and not counted["delete", "error"]


def test_a_grace_that_began_is_shortened_by_deletion() -> None:
    gone = (datetime.now(UTC) + timedelta(seconds=50)).strftime("%Y-%m-%dT%H:%M:%SZ")
    dying = pod(60)
    dying["metadata"] |= {"deletionTimestamp": gone, "deletionGracePeriodSeconds": 60}
    pods = Pods({"p": dying})
    work(pods, until(lambda: pods.done), deadline=8)
    assert {act for act, _, _ in pods.done} == {"delete"}


def test_another_pod_of_that_name_is_not_touched() -> None:
    pods = Pods({"p": pod() | {"metadata": {"name": "p", "uid": "another"}}})

    async def story(release: ReleaseTracker) -> None:
        await asyncio.sleep(0.2)

    work(pods, story, mode="delete")
    assert pods.done == []


def test_a_claim_that_was_given_back_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = Pods({"p": pod()})

    async def story(release: ReleaseTracker) -> None:
        release.records["c"].unprepared = datetime.now(UTC)
        before = len(pods.done)
        await asyncio.sleep(0.3)
        assert len(pods.done) <= before + 1

    work(pods, story)


def test_a_missing_right_is_said_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    class Closed(Pods):
        async def get(self, namespace: str, name: str) -> dict[str, Any]:
            self.done.append(("get", name, None))
            raise ForbiddenError("no")

    pods = Closed({"p": pod()})

    async def story(release: ReleaseTracker) -> None:
        await asyncio.sleep(0.4)

    work(pods, story)
    assert len(pods.done) == 1
    assert sum("are not evicted" in record.message for record in caplog.records) == 1


@dataclass
class Guarded(Pods):
    """One pod may not be moved, as an admission webhook would have it."""

    refused_at: list[float] = field(default_factory=list)
    """In the loop's time."""

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        if name == "guarded":
            self.refused_at.append(asyncio.get_running_loop().time())
            self.done.append(("refused", name, None))
            raise ForbiddenError('admission webhook "guard" denied the request')
        await super().evict(namespace, name, uid, grace)


def used_by(*names: str) -> dict[str, Any]:
    made = claim()
    made["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": name} for name in names]
    return made


def named(name: str) -> dict[str, Any]:
    return pod() | {"metadata": {"name": name, "namespace": "ns", "uid": name}}


def test_one_pod_that_may_not_be_moved_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    pods = Guarded({"guarded": named("guarded"), "other": named("other")})

    async def story(release: ReleaseTracker) -> None:
        release.claims["c"] = used_by("guarded", "other")
        await eventually_async(lambda: len(pods.refused_at) >= 3)

    counted = work(pods, story)
    assert ("evict", "other", None) in pods.done
    asked = pods.done.count(("refused", "guarded", None))
    pauses = [later - earlier for earlier, later in itertools.pairwise(pods.refused_at)]
    assert min(pauses) >= 0.2, "it is asked again, as rarely as others are"
    assert counted["evict", "error"] == asked
    assert sum("eviction of a pod is forbidden" in record.message for record in caplog.records) == 1


def test_an_answer_that_does_not_come_keeps_no_other_pod_waiting() -> None:
    class Hanging(Pods):
        async def get(self, namespace: str, name: str) -> dict[str, Any]:
            if name == "hangs":
                await asyncio.sleep(3600)
            return await super().get(namespace, name)

    pods = Hanging({"other": named("other")})

    async def story(release: ReleaseTracker) -> None:
        release.claims["c"] = used_by("hangs", "other")
        await until(lambda: pods.done)(release)

    work(pods, story)


def test_a_pod_with_two_claims_is_asked_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dra_agent.reclaim.evictor.RETRY_AFTER_S", 3600.0
    )  # no second turn, however slow the first one is
    pods = Pods({"p": pod()})

    async def story(release: ReleaseTracker) -> None:
        release.records["d"] = ClaimReleaseStatus("d", "ns", "other", datetime.now(UTC))
        release.claims["d"] = claim(tolerates())
        await asyncio.sleep(0.1)

    work(pods, story)
    assert pods.done == [("evict", "p", None)], "one of its claims does not tolerate the taint"


def test_a_pod_that_waits_for_a_claim_that_was_refused_is_moved() -> None:
    waiting = pod(phase="Pending")
    pods = Pods({"p": waiting})

    async def story(release: ReleaseTracker) -> None:
        release.records["c"].refused = datetime.now(UTC)
        await until(lambda: pods.done)(release)

    work(pods, story)


def test_an_error_of_one_pod_is_tried_again() -> None:
    pods = Pods({"p": pod()}, errors=[UnavailableError("away"), UnavailableError("away")])
    counted = work(pods, until(lambda: pods.done))
    assert counted["evict", "error"] == 2


def test_what_the_api_server_is_sent(fake_api: FakeApi, tmp_path: Path) -> None:
    from dra_agent.reclaim.claim_pods import PodClient

    made = fake_api.put("pods", {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"nodeName": "n"}})
    uid = made["metadata"]["uid"]

    async def story() -> None:
        async with connect(fake_api.kubeconfig(tmp_path / "kubeconfig")) as api:
            pods = PodClient(api)
            assert (await pods.get("ns", "p"))["metadata"]["uid"] == uid
            with pytest.raises(AgentError):
                await pods.delete("ns", "p", "another", 3)
            await pods.delete("ns", "p", uid, 3)
            with pytest.raises(NotFoundError):
                await api.get(PODS, "p", "ns")

    asyncio.run(story())
    bodies = [seen.body for seen in fake_api.writes()]
    assert bodies[-1]["gracePeriodSeconds"] == 3 and bodies[-1]["preconditions"] == {"uid": uid}


def test_an_agent_that_is_replaced_moves_nobody() -> None:
    pods = Pods({"p": pod()})
    now = datetime.now(UTC)
    state = apply(ReclaimState("b"), Signal("operator", "notice", "o", "t", now + timedelta(seconds=60)), now - PATIENT)
    active = False

    async def play() -> None:
        nonlocal active
        release = ReleaseTracker(MemoryLedger(), ClaimsApi(), node="n", driver=DRIVER)
        release.records["c"] = ClaimReleaseStatus("c", "ns", "claim", now)
        release.claims["c"] = claim()
        mover = PodActions(pods, Counter())
        evictor = Evictor(mover, release, lambda: state, mode="auto", node="n", driver=DRIVER, is_leader=lambda: active)
        task = asyncio.create_task(evictor.run())
        await asyncio.sleep(0.2)
        assert pods.done == []
        active = True
        await eventually_async(lambda: pods.done)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    assert pods.done
