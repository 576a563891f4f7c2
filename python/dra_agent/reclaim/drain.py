"""Drain of a Kubernetes node that is being reclaimed: taints first, everything else concurrently.

    hint       every device gets the taint NoSchedule: no new claims are allocated here
    notice     every device gets NoExecute: kube-controller-manager deletes the pods, and their claims are released
    cancelled  the taints are removed

The state is on disk before any of it, so after a restart the same taints, with the same timeAdded, are desired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.announcements import cancelled_message, notice_message, summary
from dra_agent.reclaim.progress_file import ProgressFile, SavedProgress, saved_claims
from dra_agent.reclaim.release_tracker import ReleaseTracker
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.status import Progress
from dra_agent.reclaim.taint_rollout import TaintRollout
from dra_agent.status import EventRecorder, ObjectReference
from dra_agent.status.events import (
    CLAIMS_NOT_RELEASED,
    CLAIMS_RELEASED,
    RECLAIM_CANCELLED,
    RECLAIM_HINT,
    RECLAIM_NOTICE,
    Reason,
)
from dra_agent.supervisor import on_thread, supervisor
from dra_agent.thread_write import write_on_thread

if TYPE_CHECKING:
    from dra_agent.reclaim.pod_eviction import PodEviction

EARLY_EVICTION_TIMEOUT_S = 0.08
"""Maximum seconds for which early evictions delay the taint. They continue afterwards."""
EVENT_DELAY_S = 0.5
"""Maximum seconds for which the Event of a notice waits for the taints."""
READ_DELAY_S = 0.3
"""Maximum seconds for which reading claims waits for the taints."""
NOTIFY_INTERVAL_S = 0.25
"""Seconds between two notifications of the sources that every claim is released. Repeated, because a source may start
to wait for it later, as an orderly shutdown after a spot notice does."""
SAVE_INTERVAL_S = 0.25
"""Minimum seconds between two writes of the progress file."""
SAVE_END_TIMEOUT_S = 1.0
"""Seconds for which the end of a notice waits for a write of the progress file that has begun."""
OVERDUE_DELAY_S = 0.1
"""Seconds after the deadline before unreleased claims are reported. An agent that starts after the deadline reads the
claims in that time: they may have been released meanwhile."""
RESUME_CHECK_S = 1.0
"""Maximum seconds of a timer for the deadline: timers of the loop stop while the host is suspended."""

log = logging.getLogger(__name__)

Milestone = Literal["hint", "notice", "cancelled", "released", "not_released"]
_REASONS: dict[Milestone, Reason] = {
    "hint": RECLAIM_HINT,
    "notice": RECLAIM_NOTICE,
    "cancelled": RECLAIM_CANCELLED,
    "released": CLAIMS_RELEASED,
    "not_released": CLAIMS_NOT_RELEASED,
}


class DrainReporter:
    """Reports the drain of a node: in the log, in Events of the Node, and to the sources of the signals."""

    def __init__(
        self,
        taints: TaintRollout,
        reclaim: ReclaimService,
        events: EventRecorder,
        *,
        node: str,
        is_leader: Callable[[], bool],
    ) -> None:
        """`is_leader`: whether this agent writes Events, of several in a rolling update."""
        self._taints = taints
        self._reclaim = reclaim
        self._events = events
        self._node = ObjectReference.node(node)
        self._is_leader = is_leader
        self._waiting: set[asyncio.Task[None]] = set()
        self._pending: list[str] = []
        """Messages of notices whose Event waits for the taints."""

    def report(self, milestone: Milestone, message: str) -> None:
        """Report a milestone. The Event of a notice follows the taints, or `EVENT_DELAY_S` seconds."""
        level = logging.WARNING if milestone in ("notice", "not_released") else logging.INFO
        log.log(level, "reclaim of the node", extra={"what": milestone, "note": message})
        if milestone == "notice":
            self._pending.append(message)
            task = supervisor().start_task("reclaim event", self._record_after_taints())
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            self._record_pending()
            self._record(milestone, message)

    async def notify_sources(self) -> None:
        """Notify the sources of the signals that every claim is released."""
        await self._reclaim.released()

    def stop(self) -> None:
        """Drop the Events that wait for the taints."""
        for task in self._waiting:
            task.cancel()

    async def _record_after_taints(self) -> None:
        await self._taints.wait(EVENT_DELAY_S)
        self._record_pending()

    def _record_pending(self) -> None:
        messages, self._pending = self._pending, []
        for message in messages:
            self._record("notice", message)

    def _record(self, milestone: Milestone, message: str) -> None:
        if self._is_leader():
            self._events.record(_REASONS[milestone], self._node, message)


class DrainController:
    """Acts on each change of the state. Lives on the event loop."""

    def __init__(
        self,
        taints: TaintRollout,
        claims: ReleaseTracker,
        reporter: DrainReporter,
        *,
        pods: PodEviction | None = None,
        file: ProgressFile | None = None,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """`pods` evicts pods that the taint does not evict. `file` keeps the progress over a restart of the agent."""
        self._taints = taints
        self._claims = claims
        self._reporter = reporter
        self._pods = pods
        self._file = file
        self._now = now
        self._state: ReclaimState | None = None
        self._state_changed = asyncio.Event()
        self._active = False
        """Whether a notice is being acted on."""
        self._reported: dict[str, str] = {}
        """The last message of each milestone of this notice."""
        self._tasks: list[asyncio.Task[None]] = []
        self._early_eviction: asyncio.Task[None] | None = None
        self._saved: SavedProgress | None = None
        """What this agent has put into the progress file last."""

    @property
    def progress(self) -> Progress:
        """Progress of the release of claims."""
        closed = self._taints.seconds is not None or self._taints.untaintable_unpublished
        return Progress(
            tainted_after=self._taints.seconds,
            claims=tuple(msgspec.structs.replace(record) for record in self._claims.records.values()),
            evictions={} if self._pods is None else self._pods.counts(),
            complete=self._active and closed and self._claims.complete,
        )

    async def resume(self, state: ReclaimState, *, received_now: bool = False) -> None:
        """Continue an earlier run: reports are not repeated.

        `received_now`: this run received the notice, while it started.
        """
        self._state = state
        if state.phase == "notice":
            saved = None
            if self._file is not None and state.noticed is not None:
                saved = await on_thread(self._file.load, state.noticed)
            # The notice may have been withdrawn, or replaced, while the file was read.
            if not self._active and self._state.noticed == state.noticed:
                self._begin(self._state, saved)
                if received_now:
                    self._reporter.report("notice", notice_message(self._state))

    def refused(self, uid: str, namespace: str, name: str) -> None:
        """Track a claim of this node that was not prepared because of the notice."""
        if self._active:
            self._claims.refused(uid, namespace, name)

    def save_again(self) -> None:
        """Save the progress if this agent could not, or another one has saved its own."""
        self._saved = None
        self._claims.changed.set()

    async def changed(self, before: ReclaimState, after: ReclaimState) -> None:
        """Act on a change; returns at once."""
        self._state = after
        self._state_changed.set()
        if self._taints.differs(before, after):
            await self._publish_taints(before, after)
        if after.phase == before.phase:
            return
        refused = 0
        if before.phase == "notice":
            await self.stop()
            refused = sum(record.state == "refused" for record in self._claims.records.values())
            self._active = False
            self._claims.reset()
        if after.phase == "notice":
            self._begin(after)
            self._reporter.report("notice", notice_message(after))
        elif after.phase == "hint":
            self._reporter.report("hint", notice_message(after))
        else:
            self._reporter.report("cancelled", cancelled_message(refused))

    async def stop(self) -> None:
        """Stop all tasks; taints stay as they are."""
        tasks, self._tasks = self._tasks, []
        if self._early_eviction is not None:
            tasks.append(self._early_eviction)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish_taints(self, before: ReclaimState, after: ReclaimState) -> None:
        starts = after.phase == "notice" != before.phase
        eviction = self._pods.early_evictions(after) if starts and self._pods is not None else None
        if eviction is not None:
            self._early_eviction = supervisor().start_task("reclaim early eviction", eviction)
            await asyncio.wait([self._early_eviction], timeout=EARLY_EVICTION_TIMEOUT_S)
        self._taints.publish()

    def _begin(self, state: ReclaimState, saved: SavedProgress | None = None) -> None:
        self._active = True
        self._reported = {} if saved is None else dict(saved.reported)
        self._taints.reset(None if saved is None else saved.tainted)
        self._claims.reset()
        if saved is not None:
            self._claims.records.update({claim.uid: claim.record() for claim in saved.claims})
        self._claims.compare_ledger()
        self._tasks = [
            supervisor().loop("reclaim taints", partial(self._roll_out_taints, state)),
            supervisor().loop("reclaim release", self._report_release),
            supervisor().loop("reclaim notify sources", self._notify_sources),
        ]
        if self._file is not None and state.noticed is not None:
            save = partial(self._save, self._file, SavedProgress(self._file.boot, state.noticed))
            self._tasks.append(supervisor().loop("reclaim save", save))
        if self._pods is not None:
            self._tasks.append(supervisor().loop("reclaim evict", partial(self._pods.evict, self._claims)))

    async def _roll_out_taints(self, state: ReclaimState) -> None:
        await self._taints.run(state)
        self._claims.changed.set()

    async def _save(self, file: ProgressFile, progress: SavedProgress) -> None:
        """Write the progress file soon after each change, and never before the taints."""
        self._saved = None
        await self._taints.wait(READ_DELAY_S)
        while True:
            self._claims.changed.clear()
            self._stamp_tainted()
            current = msgspec.structs.replace(
                progress,
                tainted=self._taints.completed_at,
                reported=dict(self._reported),
                claims=saved_claims(self._claims.records.values()),
            )
            if current != self._saved:
                # Progress of this notice must not replace that of the next one.
                is_saved = await write_on_thread(partial(file.save, current), timeout_s=SAVE_END_TIMEOUT_S)
                self._saved = current if is_saved else None
            await self._claims.changed.wait()
            await asyncio.sleep(SAVE_INTERVAL_S)

    def _stamp_tainted(self) -> None:
        tainted = self._taints.completed_at
        for record in self._claims.records.values():
            if record.tainted is None and tainted is not None and self._taints.complete:
                record.tainted = max(tainted, record.seen)

    async def _report_release(self) -> None:
        overdue_reported = "not_released" in self._reported
        # Reading claims is many requests; those for the slices come first.
        await self._taints.wait(READ_DELAY_S)
        while True:
            async with _background(self._claims.wait_complete()) as released:
                if not overdue_reported:
                    async with _background(self._wait_deadline()) as deadline:
                        await asyncio.wait((released, deadline), return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.wait((released,), timeout=OVERDUE_DELAY_S)
                    if not released.done():
                        overdue_reported = True
                        self._report_overdue()
                await released
            self._report_once("released", self._summary())
            # A claim whose prepare ran when the notice came is in the ledger only now.
            await self._claims.wait_incomplete()

    async def _wait_deadline(self) -> None:
        while True:
            self._state_changed.clear()
            deadline = None if self._state is None else self._state.deadline
            remaining_s = None if deadline is None else (deadline - self._now()).total_seconds()
            if remaining_s is not None and remaining_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if remaining_s is None else min(remaining_s, RESUME_CHECK_S)):
                    await self._state_changed.wait()

    def _report_overdue(self) -> None:
        for record in self._claims.records.values():
            record.overdue = None if record.released else record.overdue or self._now()
        self._report_once("not_released", self._summary())

    async def _notify_sources(self) -> None:
        await self._taints.wait(READ_DELAY_S)
        while True:
            if self._claims.unprepared:
                await self._reporter.notify_sources()
            await asyncio.sleep(NOTIFY_INTERVAL_S)

    def _report_once(self, milestone: Milestone, message: str) -> None:
        """Report, unless an earlier run reported the same message."""
        if self._reported.get(milestone) != message:
            self._reported[milestone] = message
            self._claims.changed.set()
            self._reporter.report(milestone, message)

    def _summary(self) -> str:
        return summary(self._claims.records.values(), None if self._state is None else self._state.noticed)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = supervisor().start_task("reclaim wait", work, awaited=True)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
