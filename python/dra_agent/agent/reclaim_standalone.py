"""What a reclaim does without Kubernetes: claims are given up in a bounded time and wait in their old order.

When the notice is taken back, or the host comes back after its next boot, they are allocated again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from dra_agent.agent.config import Config
from dra_agent.agent.reclaim_runtime import seconds_left
from dra_agent.clock import STEADY
from dra_agent.reclaim.release_hook import run_hooks
from dra_agent.reclaim.release_status import ClaimReleaseStatus, Progress
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from dra_agent.standalone.claim import ClaimView
from dra_agent.standalone.service import StandaloneService

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5


class StandaloneDrain:
    """Acts on each change of the state."""

    def __init__(self, config: Config, reclaim: ReclaimService, service: StandaloneService) -> None:
        self._settings = config.reclaim
        self._reclaim = reclaim
        self._service = service
        self._records: dict[str, ClaimReleaseStatus] = {}
        self._complete = False
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Before claims are served: those of a host that is being taken are not prepared first and released then."""
        self._reclaim.progress = lambda: Progress(claims=tuple(self._records.values()), complete=self._complete)
        self._reclaim.on_change(self._changed)
        if self._reclaim.state.phase == "notice":
            await self._service.suspend(_why(self._reclaim.state), give_up=False)

    def start(self) -> None:
        """Once claims are served: go on with what an earlier run has begun."""
        if self._reclaim.state.phase == "notice":
            self._begin()

    @property
    def busy(self) -> bool:
        """Whether claims are being released."""
        return self._reclaim.state.phase == "notice" and not self._complete

    async def stop(self) -> None:
        """Leave things as they are."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _changed(self, before: ReclaimState, after: ReclaimState) -> None:
        if (before.phase == "notice") == (after.phase == "notice"):
            if after.phase == "notice":
                await self._service.change_reason(_why(after))
            return
        await self.stop()
        if after.phase == "notice":
            self._begin()
        else:
            self._records.clear()
            # Not waited for, as nothing here: a vendor's library that hangs must not keep the next change waiting.
            self._task = asyncio.create_task(self._seen(self._service.resume()), name="reclaim resume")

    def _begin(self) -> None:
        self._complete = False
        self._task = asyncio.create_task(self._seen(self._give_up()), name="reclaim leave")

    async def _seen(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # whatever goes wrong here must be seen, and the agent go on
            log.exception("claims were not moved")

    async def _give_up(self) -> None:
        await self._service.suspend(_why(self._reclaim.state), give_up=False)
        held = await self._service.held()
        now = STEADY.now()
        self._records = {view.uid: ClaimReleaseStatus(view.uid, view.namespace, view.name, now) for view in held}
        variables = [self._variables(view) for view in held]
        failures = await run_hooks(self._settings.hook, variables, self._time_for_hooks())
        for uid, failure in failures.items():
            self._records[uid].unknown = failure
        await self._service.suspend(_why(self._reclaim.state), give_up=True)
        while not await self._look():
            await asyncio.sleep(POLL_INTERVAL_S)
        self._complete = True
        log.info("every claim is released and waits for the next host", extra={"claims": len(self._records)})
        # Again and again: a shutdown that comes after another source's notice would wait for nothing.
        while True:
            await self._reclaim.released()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _look(self) -> bool:
        allocated = {view.uid for view in await self._service.held()}
        now = STEADY.now()
        for uid, record in self._records.items():
            if uid not in allocated and record.released is None:
                record.unprepared = record.released = now
        return not allocated

    def _time_for_hooks(self) -> float:
        left = seconds_left(self._reclaim)
        return self._settings.hook_seconds if left is None else max(0.0, min(self._settings.hook_seconds, left))

    def _variables(self, view: ClaimView) -> dict[str, str]:
        state = self._reclaim.state
        cause, deadline = state.cause, state.deadline
        return {
            "DRA_AGENT_CLAIM_UID": view.uid,
            "DRA_AGENT_CLAIM_NAME": view.name,
            "DRA_AGENT_CLAIM_NAMESPACE": view.namespace,
            "DRA_AGENT_CLAIM_DEVICES": " ".join(view.cdi_device_ids),
            "DRA_AGENT_RECLAIM_SOURCE": "" if cause is None else cause.source,
            "DRA_AGENT_RECLAIM_DEADLINE": ""
            if deadline is None
            else STEADY.to_wall(deadline).isoformat(timespec="seconds"),
        }


def _why(state: ReclaimState) -> str:
    cause = state.cause
    by = f" ({cause.source}: {cause.what})" if cause is not None else ""
    return f"this host is being taken{by}"
