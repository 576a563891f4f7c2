"""Moves the pods that the taint does not move: one look a second at the claims that the kubelet has not given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from dra_agent.cluster.errors import ConflictError, ForbiddenError, NotFoundError
from dra_agent.errors import AgentError
from dra_agent.reclaim.mover import Mover
from dra_agent.reclaim.notice import State
from dra_agent.reclaim.pods import Decision, Mode, Moment, decide
from dra_agent.reclaim.record import ClaimRecord
from dra_agent.reclaim.release import Release

log = logging.getLogger(__name__)

EVERY = 1.0
AGAIN = 5.0
"""Seconds between two tries at one pod; a budget may allow it later (kubectl drain waits as long)."""


class Evictor:
    """Works for one notice, from `run` until it is cancelled."""

    def __init__(
        self,
        mover: Mover,
        release: Release,
        state: Callable[[], State],
        *,
        mode: Mode,
        node: str,
        driver: str,
        active: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
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

    async def run(self) -> None:
        """Look at every claim each second; ends where the right to move pods is missing."""
        if self._mode == "taint":
            return
        while True:
            moment = self._moment()
            if moment is None:
                return
            try:
                for record in list(self._release.records.values()) if self._active() else ():
                    claim = self._release.claims.get(record.uid)
                    if record.unprepared is None and claim is not None:
                        await self._look(record, claim, moment)
            except ForbiddenError as error:
                log.error(
                    "pods that the taint does not move stay where they are",
                    extra={"reason": str(error), "todo": "grant it: podEviction of the chart"},
                )
                return
            await asyncio.sleep(EVERY)

    def _moment(self) -> Moment | None:
        state = self._state()
        if state.noticed is None:
            return None
        return Moment(self._now(), state.noticed, state.deadline, self._node, self._driver, self._mode)

    async def _look(self, record: ClaimRecord, claim: Mapping[str, Any], moment: Moment) -> None:
        loop = asyncio.get_running_loop()
        for consumer in (claim.get("status") or {}).get("reservedFor") or []:
            name, uid = str(consumer.get("name", "")), str(consumer.get("uid", ""))
            if consumer.get("resource") != "pods" or consumer.get("apiGroup") or loop.time() < self._due.get(uid, 0.0):
                continue
            try:
                pod = await self._mover.pods.get(record.namespace, name)
                if pod.get("metadata", {}).get("uid") != uid:
                    continue
                await self._carry_out(record, name, uid, decide(pod, claim, moment))
            except (NotFoundError, ConflictError):
                continue  # it is gone, or another one of that name is there
            except ForbiddenError:
                raise
            except AgentError as error:
                log.warning("a pod cannot be moved", extra={"pod": f"{record.namespace}/{name}", "reason": str(error)})
                self._due[uid] = loop.time() + EVERY

    async def _carry_out(self, record: ClaimRecord, name: str, uid: str, decision: Decision) -> None:
        if decision.act in ("leave", "wait"):
            if decision.act == "leave" and self._left.get(uid) != decision.why:
                self._left[uid] = decision.why
                pod = {"pod": f"{record.namespace}/{name}", "claim": record.name, "why": decision.why}
                log.info("the pod is left alone", extra=pod)
            return
        self._due[uid] = asyncio.get_running_loop().time() + AGAIN
        moved = await self._mover.move(record.namespace, name, uid, decision)
        record.kept = "" if moved else f"a budget keeps {name}"
