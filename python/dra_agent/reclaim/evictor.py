"""Evicts pods that the taint does not evict: checks the claims that the kubelet has not released once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from dra_agent.api_object import consumers_of, is_pod
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import ConflictError, ForbiddenError, NotFoundError, ThrottledError
from dra_agent.reclaim.claim_pods import PodClient
from dra_agent.reclaim.eviction_policy import Decision, EvictionContext, EvictionMode, decide, next_check
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.status import ClaimReleaseStatus
from dra_agent.status.permission import PermissionMonitor

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
"""Seconds between two checks of the claims: most evictions become due with time, not with a change."""
RETRY_AFTER_S = 5.0
"""Seconds between two attempts for one pod; a budget may allow it later (kubectl drain waits as long)."""
MAX_CONCURRENCY = 8
"""Maximum concurrent requests for pods."""


class _ReservedClaim(msgspec.Struct, frozen=True):
    """A pod, and a claim of this node that is reserved for it."""

    pod: str
    record: ClaimReleaseStatus
    claim: Mapping[str, Any]


class _Pause(NamedTuple):
    """When a pod is due; a pause that was planned for another deadline is over."""

    until: float
    """Infinite during an attempt."""
    deadline: datetime | None


class PodActions:
    """Evicts or deletes pods; counts and logs each action."""

    def __init__(self, pods: PodClient, counts: Counter[tuple[str, str]]) -> None:
        """`counts` counts the actions by action and result."""
        self.pods = pods
        self._counts = counts

    async def apply(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        """Evict or delete a pod; return False if a budget does not allow it.

        Raises:
            AgentError: one of dra_agent.kube_client.
        """
        action, result = decision.act, ""
        try:
            if decision.act == "evict":
                result = await self._evict(namespace, name, uid, decision.grace)
            elif decision.evict_first and await self._is_evicted(namespace, name, uid, decision):
                action, result = "evict", "ok"
            else:
                assert decision.act == "delete" and decision.grace is not None
                await self.pods.delete(namespace, name, uid, decision.grace)
                result = "ok"
        except AgentError:
            self._counts[action, "error"] += 1
            raise
        self._counts[action, result] += 1
        extra: dict[str, object] = {"pod": f"{namespace}/{name}", "why": decision.why, "how": action}
        if decision.grace is not None:
            extra["grace"] = decision.grace
        log.warning("pod evicted" if result == "ok" else "a disruption budget blocks the eviction", extra=extra)
        return result == "ok"

    async def _evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> str:
        try:
            await self.pods.evict(namespace, name, uid, grace)
        except ThrottledError:
            return "budget"  # no disruption is allowed: retried, and deleted near the deadline where configured
        return "ok"

    async def _is_evicted(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        try:
            result = await self._evict(namespace, name, uid, decision.grace)
        except (NotFoundError, ConflictError):
            raise
        except AgentError:
            result = "error"  # no permission, or two budgets for one pod: deletion does not wait for the reason
        if result != "ok":
            self._counts["evict", result] += 1
        return result == "ok"


class Evictor:
    """Evicts the pods of claims in time during one notice, from `run` until it is cancelled."""

    def __init__(
        self,
        actions: PodActions,
        claims: ReleaseTracker,
        reclaim: ReclaimService,
        *,
        mode: EvictionMode,
        node: str,
        driver: str,
        is_leader: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """`reclaim` has the current state. Without `is_leader` nothing is done."""
        self._actions = actions
        self._claims = claims
        self._reclaim = reclaim
        self._mode = mode
        self._node = node
        self._driver = driver
        self._is_leader = is_leader
        self._now = now
        self._due: dict[str, _Pause] = {}
        self._ignored: dict[str, str] = {}
        """Pods that are not evicted, by UID, and the reason that was logged."""
        self._settled: set[str] = set()
        """Pods that need no request at their last check: they are being deleted, or are left alone."""
        self._forbidden: set[str] = set()
        self._permission = PermissionMonitor(
            "pods that the taint does not evict are not evicted",
            "podEviction of the chart",
            level=logging.ERROR,
            retry_after_s=RETRY_AFTER_S,
        )
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)

    async def run(self) -> None:
        """Check every claim each second, until the notice ends."""
        async with asyncio.TaskGroup() as attempts:
            while self._reclaim.state.noticed is not None:
                for uid, uses in self._due_pods().items() if self._is_leader() else ():
                    self._due[uid] = _Pause(float("inf"), None)
                    attempts.create_task(self._attempt(uid, uses), name="reclaim pod")
                await asyncio.sleep(POLL_INTERVAL_S)

    def _context(self) -> EvictionContext | None:
        state = self._reclaim.state
        if state.noticed is None:
            return None
        held = self._held_pods().keys()
        return EvictionContext(
            self._now(),
            state.noticed,
            state.deadline,
            self._node,
            self._driver,
            self._mode,
            pods=len(held - self._settled),
            held=len(held),
        )

    def _due_pods(self) -> dict[str, list[_ReservedClaim]]:
        """Return the pods that are due, by UID, each with the claims of this node that are reserved for it."""
        now, deadline = asyncio.get_running_loop().time(), self._reclaim.state.deadline

        def is_due(pause: _Pause | None) -> bool:
            if pause is None or now >= pause.until:
                return True
            return pause.deadline != deadline and pause.until != float("inf")

        return {uid: uses for uid, uses in self._held_pods().items() if is_due(self._due.get(uid))}

    def _held_pods(self) -> dict[str, list[_ReservedClaim]]:
        """Return the pods that may have to be evicted, by UID."""
        found = dict[str, list[_ReservedClaim]]()
        for record in self._claims.records.values():
            claim = self._claims.claims.get(record.uid)
            if record.unprepared is not None or record.released is not None or claim is None:
                continue
            for consumer in consumers_of(claim):
                name, uid = str(consumer.get("name", "")), str(consumer.get("uid", ""))
                if is_pod(consumer):
                    found.setdefault(uid, []).append(_ReservedClaim(name, record, claim))
        return found

    async def _attempt(self, uid: str, uses: list[_ReservedClaim]) -> None:
        # A pod that takes long, or fails, does not delay others.
        pause, first, deadline = POLL_INTERVAL_S, uses[0], self._reclaim.state.deadline
        pod = f"{first.record.namespace}/{first.pod}"
        try:
            async with self._slots:
                pause = await self._evict(uid, uses)
        except (NotFoundError, ConflictError):
            pass  # it was deleted, or replaced by another one of that name
        except ForbiddenError as error:
            pause = RETRY_AFTER_S
            if uid not in self._forbidden:
                # A missing permission, or an admission policy for this pod.
                hint = "grant it: podEviction of the chart; or check which admission policy protects this pod"
                log.error("eviction of a pod is forbidden", extra={"pod": pod, "reason": str(error), "todo": hint})
            self._forbidden.add(uid)
        except AgentError as error:
            log.warning("failed to evict a pod", extra={"pod": pod, "reason": str(error)})
        except Exception:  # a defect for one pod must not affect the others
            pause = RETRY_AFTER_S
            log.exception("a pod is not evicted because of a defect", extra={"pod": pod})
        finally:
            self._due[uid] = _Pause(asyncio.get_running_loop().time() + pause, deadline)

    async def _evict(self, uid: str, uses: list[_ReservedClaim]) -> float:
        """Apply the most urgent action of its claims; return the seconds to the next attempt."""
        name, namespace = uses[0].pod, uses[0].record.namespace
        try:
            pod = await self._actions.pods.get(namespace, name)
        except ForbiddenError as error:
            return self._permission.refused(error)
        self._permission.granted()
        if pod.get("metadata", {}).get("uid") != uid:
            return POLL_INTERVAL_S
        context, checks = self._context(), list[float]()
        if context is None:
            return POLL_INTERVAL_S
        self._settled.add(uid)
        for use in uses:
            decision = decide(pod, use.claim, context)
            if decision.act in ("evict", "delete"):
                self._settled.discard(uid)
                evicted = await self._actions.apply(namespace, name, uid, decision)
                for one in uses:
                    one.record.blocked_reason = "" if evicted else f"a disruption budget blocks the eviction of {name}"
                return next_check(decision, pod, context, RETRY_AFTER_S)
            if decision.until is not None:
                self._settled.discard(uid)
            checks.append(next_check(decision, pod, context, 0.0))
            if decision.act == "leave" and self._ignored.get(uid) != decision.why:
                self._ignored[uid] = decision.why
                extra = {"pod": f"{namespace}/{name}", "claim": use.record.name, "why": decision.why}
                log.info("the pod is not evicted", extra=extra)
        return min(checks)
