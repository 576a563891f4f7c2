"""Evicts pods that the taint does not evict: checks the claims that the kubelet has not released once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.kube_client.errors import ConflictError, ForbiddenError, NotFoundError, ThrottledError
from dra_agent.reclaim.eviction_policy import Decision, EvictionContext, Mode, decide
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.status import ClaimReleaseStatus

log = logging.getLogger(__name__)


class PodClient(Protocol):
    """The pods of the API server. Raises the errors of dra_agent.kube_client."""

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Read a pod."""

    async def evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        """Have this very pod evicted, with its own grace period or this; ThrottledError where a budget forbids it."""

    async def delete(self, namespace: str, name: str, uid: str, grace: int) -> None:
        """Delete this very pod."""


class PodActions:
    """Moves pods of the claims of one notice."""

    def __init__(self, pods: PodClient, counted: Counter[tuple[str, str]]) -> None:
        """`counted` takes note of what was done, by action and result."""
        self.pods = pods
        self._counted = counted

    async def move(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        """Evict or delete a pod; False where a budget keeps it. Raises the errors of dra_agent.kube_client."""
        how, result = decision.act, ""
        try:
            if decision.act == "evict":
                result = await self._try_evict(namespace, name, uid, decision.grace)
            elif decision.evict_first and await self._evicts_now(namespace, name, uid, decision):
                how, result = "evict", "ok"
            else:
                assert decision.act == "delete" and decision.grace is not None
                await self.pods.delete(namespace, name, uid, decision.grace)
                result = "ok"
        except AgentError:
            self._counted[how, "error"] += 1
            raise
        self._counted[how, result] += 1
        extra: dict[str, object] = {"pod": f"{namespace}/{name}", "why": decision.why, "how": how}
        if decision.grace is not None:
            extra["grace"] = decision.grace
        log.warning("pod moved" if result == "ok" else "a budget keeps the pod", extra=extra)
        return result == "ok"

    async def _try_evict(self, namespace: str, name: str, uid: str, grace: int | None = None) -> str:
        try:
            await self.pods.evict(namespace, name, uid, grace)
        except ThrottledError:
            return "budget"  # no disruption is allowed: tried again, and deleted near the deadline where configured
        return "ok"

    async def _evicts_now(self, namespace: str, name: str, uid: str, decision: Decision) -> bool:
        try:
            result = await self._try_evict(namespace, name, uid, decision.grace)
        except (NotFoundError, ConflictError):
            raise
        except AgentError:
            result = "error"  # no permission, or two budgets for one pod: there is no time to find out
        if result != "ok":
            self._counted["evict", result] += 1
        return result == "ok"


POLL_INTERVAL_S = 1.0
RETRY_AFTER_S = 5.0
"""Seconds between two tries at one pod; a budget may allow it later (kubectl drain waits as long)."""


MAX_CONCURRENCY = 8
"""Maximum concurrent requests for pods."""


class Evictor:
    """Works for one notice, from `run` until it is cancelled."""

    def __init__(
        self,
        mover: PodActions,
        release: ReleaseTracker,
        state: Callable[[], ReclaimState],
        *,
        mode: Mode,
        node: str,
        driver: str,
        active: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """Nothing is done while it is not `active`."""
        self._mover = mover
        self._release = release
        self._state = state
        self._mode = mode
        self._node = node
        self._driver = driver
        self._active = active
        self._now = now
        self._due: dict[str, float] = {}
        self._left: dict[str, str] = {}
        self._refused: set[str] = set()
        self._blind = False
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)

    async def run(self) -> None:
        """Check every claim each second; ends if the permission to read pods is missing."""
        if self._mode == "taint":
            return
        async with asyncio.TaskGroup() as turns:
            while not self._blind and (moment := self._moment()) is not None:
                for uid, users in self._pods().items() if self._active() else ():
                    self._due[uid] = float("inf")  # until this attempt is over
                    turns.create_task(self._turn(uid, users, moment), name="reclaim pod")
                await asyncio.sleep(POLL_INTERVAL_S)

    def _moment(self) -> EvictionContext | None:
        state = self._state()
        if state.noticed is None:
            return None
        return EvictionContext(self._now(), state.noticed, state.deadline, self._node, self._driver, self._mode)

    def _pods(self) -> dict[str, list[_Use]]:
        """Return the pods that are due, by uid, each with the claims of this node that are reserved for it."""
        now, found = asyncio.get_running_loop().time(), dict[str, list[_Use]]()
        for record in self._release.records.values():
            claim = self._release.claims.get(record.uid)
            if record.unprepared is not None or record.released is not None or claim is None:
                continue
            for consumer in (claim.get("status") or {}).get("reservedFor") or []:
                name, uid = str(consumer.get("name", "")), str(consumer.get("uid", ""))
                if consumer.get("resource") == "pods" and not consumer.get("apiGroup") and now >= self._due.get(uid, 0):
                    found.setdefault(uid, []).append(_Use(name, record, claim))
        return found

    async def _turn(self, uid: str, users: list[_Use], moment: EvictionContext) -> None:
        # A pod that takes long, or fails, does not delay others.
        pause, first = POLL_INTERVAL_S, users[0]
        pod = f"{first.record.namespace}/{first.pod}"
        try:
            async with self._slots:
                pause = await self._look(uid, users, moment)
        except (NotFoundError, ConflictError):
            pass  # it was deleted, or replaced by another one of that name
        except ForbiddenError as error:
            pause = RETRY_AFTER_S
            if uid not in self._refused:
                # By a missing right, or by an admission policy that is about this pod.
                hint = "grant it: podEviction of the chart; or check which admission policy protects this pod"
                log.error("a pod may not be moved", extra={"pod": pod, "reason": str(error), "todo": hint})
            self._refused.add(uid)
        except AgentError as error:
            log.warning("a pod cannot be moved", extra={"pod": pod, "reason": str(error)})
        except Exception:  # what is odd about one pod must not keep the others
            pause = RETRY_AFTER_S
            log.exception("a pod is not moved", extra={"pod": pod})
        finally:
            self._due[uid] = asyncio.get_running_loop().time() + pause

    async def _look(self, uid: str, users: list[_Use], moment: EvictionContext) -> float:
        """Apply the most urgent action of its claims; return the seconds to the next attempt."""
        name, namespace = users[0].pod, users[0].record.namespace
        try:
            pod = await self._mover.pods.get(namespace, name)
        except ForbiddenError as error:
            if not self._blind:
                hint = "grant it: podEviction of the chart"
                log.error(
                    "pods that the taint does not move stay where they are", extra={"reason": str(error), "todo": hint}
                )
            self._blind = True
            return RETRY_AFTER_S
        if pod.get("metadata", {}).get("uid") != uid:
            return POLL_INTERVAL_S
        for use in users:
            decision = decide(pod, use.claim, moment)
            if decision.act in ("evict", "delete"):
                moved = await self._mover.move(namespace, name, uid, decision)
                for held in users:
                    held.record.kept = "" if moved else f"a budget keeps {name}"
                return RETRY_AFTER_S
            if decision.act == "leave" and self._left.get(uid) != decision.why:
                self._left[uid] = decision.why
                extra = {"pod": f"{namespace}/{name}", "claim": use.record.name, "why": decision.why}
                log.info("the pod is left alone", extra=extra)
        return 0.0


class _Use(msgspec.Struct, frozen=True):
    """A pod, and a claim of this node that is reserved for it."""

    pod: str
    record: ClaimReleaseStatus
    claim: Mapping[str, Any]
