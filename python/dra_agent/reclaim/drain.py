"""Drain of a Kubernetes node that is being reclaimed: taints first, everything else concurrently.

    hint       every device gets the taint NoSchedule: no new claim comes here
    notice     every device gets NoExecute: kube-controller-manager deletes the pods, their claims are released
    cancelled  the taints go away

The state is on disk before any of it, so after a restart the same taints, with the same timeAdded, are what should be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.announcements import announced, has_taint, summary, taint_of, taken_back
from dra_agent.reclaim.release_tracker import POLL_INTERVAL_S, ReleaseTracker
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import ProgressFile, SavedProgress, kept_claims
from dra_agent.reclaim.status import Progress

log = logging.getLogger(__name__)

AHEAD = 0.08
"""Seconds for which early evictions may delay the taint at most. They continue afterwards."""
TAINT_POLL_INTERVAL_S = 0.01
"""Seconds between two checks that every slice is tainted; ten times that after the first second."""
PRESS = 1.0
"""Seconds, and a jitter of as much as half of it less, after which a slice that is not tainted yet is tried again: the
publisher by itself waits longer after each failure, up to a minute."""
READ_AFTER = 0.3
"""Seconds for which reading claims waits for the taints, at most."""
REPORT_AGAIN_AFTER_S = 0.25
"""Seconds between two notifications of sources that every claim is released: a source may start to wait for
that later, as an orderly shutdown after a spot notice does."""
COMPLAIN = 5.0
"""Seconds after which devices that are not tainted are a problem."""

What = Literal["hint", "notice", "cancelled", "released", "kept"]
Tell = Callable[[What, str], None]
"""Reports an event in one sentence."""


class DrainController:
    """Acts on each change of the state. Lives on the event loop."""

    def __init__(
        self,
        *,
        driver: str,
        publish: Callable[[], None],
        published: Callable[[], Iterable[dict[str, Any]]],
        wanted: Callable[[], Iterable[str]],
        release: Callable[[], ReleaseTracker],
        released: Callable[[], Awaitable[None]],
        tell: Tell,
        evict: Callable[[ReleaseTracker], Coroutine[Any, Any, None]] | None = None,
        evictions: Callable[[], dict[tuple[str, str], int]] = dict,
        ahead: Callable[[ReclaimState], Coroutine[Any, Any, None] | None] = lambda state: None,
        file: ProgressFile | None = None,
        now: Callable[[], datetime] = STEADY.now,
    ) -> None:
        """Set the collaborators.

        `publish` publishes the devices again, with the state's taint; `published` returns the published slices, and
        `wanted` the names of the devices that should be in them. `release` creates the tracker of one notice;
        `released` is called repeatedly while the kubelet has released every claim. `evict` evicts pods that the taint
        does not evict, and `evictions` counts them. `ahead` returns the evictions that must precede the taints of a
        notice, if anything. `file` keeps what became of the claims over a restart.
        """
        self._driver = driver
        self._publish = publish
        self._published = published
        self._wanted = wanted
        self._make_release = release
        self._released = released
        self._tell = tell
        self._evict = evict
        self._evictions = evictions
        self._ahead = ahead
        self._file = file
        self._tainted_at: datetime | None = None
        self._told: dict[str, str] = {}
        self._now = now
        self._state: ReclaimState | None = None
        self._release: ReleaseTracker | None = None
        self._tainted_after: float | None = None
        self._withdrawn = False
        self._tasks: list[asyncio.Task[None]] = []
        self._first: asyncio.Task[None] | None = None
        self._all_tainted = asyncio.Event()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        records = () if self._release is None else tuple(self._release.records.values())
        closed = self._tainted_after is not None or self._withdrawn
        complete = closed and self._release is not None and self._release.complete
        claims = tuple(msgspec.structs.replace(one) for one in records)
        return Progress(self._tainted_after, claims, self._evictions(), complete)

    async def resume(self, state: ReclaimState, *, news: bool = False) -> None:
        """Continue an earlier run: what it reported is not reported again.

        `news`: this run received the notice, while it started.
        """
        self._state = state
        if state.phase == "notice":
            kept = None
            if self._file is not None and state.noticed is not None:
                kept = await asyncio.get_running_loop().run_in_executor(None, self._file.load, state.noticed)
            # The notice may have been withdrawn, or replaced, while the file was read.
            if self._release is None and self._state.noticed == state.noticed:
                self._begin(self._state, kept)
                if news:
                    self._tell("notice", announced(self._state))

    def refused(self, uid: str, namespace: str, name: str) -> None:
        """A claim of this node was not prepared, for the notice."""
        if self._release is not None:
            self._release.refused(uid, namespace, name)

    async def changed(self, before: ReclaimState, after: ReclaimState) -> None:
        """Act on a change; returns at once."""
        self._state = after
        if taint_of(before, self._driver) != taint_of(after, self._driver):
            await self._publish_taints(before, after)
        if after.phase == before.phase:
            return
        refused = 0
        if before.phase == "notice":
            await self.stop()
            records = [] if self._release is None else self._release.records.values()
            refused = sum(record.state == "refused" for record in records)
            self._release = None
        if after.phase == "notice":
            self._begin(after)
            self._tell("notice", announced(after))
        elif after.phase == "hint":
            self._tell("hint", announced(after))
        else:
            self._tell("cancelled", taken_back(refused))

    async def _publish_taints(self, before: ReclaimState, after: ReclaimState) -> None:
        first = self._ahead(after) if after.phase == "notice" != before.phase else None
        if first is not None:
            task = asyncio.create_task(first, name="reclaim ahead")
            self._first = task
            await asyncio.wait([task], timeout=AHEAD)
        self._publish()

    async def tainted(self, at_most: float) -> None:
        """Wait until every device is tainted, or so many seconds: for what must not get in the way of that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._all_tainted.wait()

    async def stop(self) -> None:
        """Stop watching; taints stay as they are."""
        tasks, self._tasks = self._tasks, []
        if self._first is not None:
            tasks.append(self._first)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, state: ReclaimState, kept: SavedProgress | None = None) -> None:
        self._tainted_after, self._withdrawn = None, False
        self._tainted_at, self._told = (None, {}) if kept is None else (kept.tainted, dict(kept.told))
        self._all_tainted.clear()
        self._release = self._make_release()
        if kept is not None:
            self._release.records.update({claim.uid: claim.record() for claim in kept.claims})
        self._release.look()
        self._tasks = [
            asyncio.create_task(self._watch_taints(state), name="reclaim taints"),
            asyncio.create_task(self._watch_release(self._release), name="reclaim release"),
            asyncio.create_task(self._notify_sources(self._release), name="reclaim let go"),
        ]
        if self._file is not None and state.noticed is not None:
            keep = self._keep(self._file, SavedProgress(self._file.boot, state.noticed), self._release)
            self._tasks.append(asyncio.create_task(keep, name="reclaim keep"))
        if self._evict is not None:
            self._tasks.append(asyncio.create_task(self._evict(self._release), name="reclaim evict"))

    async def _watch_taints(self, state: ReclaimState) -> None:
        assert state.noticed is not None
        taint = taint_of(state, self._driver)
        began, complained = asyncio.get_running_loop().time(), False
        press_after = _jittered(PRESS)
        while True:
            devices = [device for one in self._published() for device in one["spec"].get("devices") or ()]
            tainted = {device["name"] for device in devices if has_taint(device, taint, self._driver)}
            # A device that is no longer published evicts no pod.
            offered = {device["name"] for device in devices}
            bare = {*self._wanted(), *offered} - tainted
            took = asyncio.get_running_loop().time() - began
            if not bare:
                # After a restart they are tainted already; the time is in the progress file.
                self._tainted_at = self._tainted_at or self._now()
                self._tainted_after = max(0.0, (self._tainted_at - state.noticed).total_seconds())
                self._all_tainted.set()
                log.info("every device is tainted", extra={"devices": len(tainted), "seconds": round(took, 3)})
                return
            if took > press_after and offered - tainted:
                press_after = took + _jittered(PRESS)
                self._publish()
            # If the feature gate is off, the publisher withdraws devices that it cannot taint: no new claim follows
            # either.
            self._withdrawn = took > COMPLAIN and tainted >= offered
            if took > COMPLAIN and not complained:
                complained = True
                log.error("devices are not tainted: nothing moves their pods away", extra={"devices": len(bare)})
            await asyncio.sleep(TAINT_POLL_INTERVAL_S if took < 1.0 else 10 * TAINT_POLL_INTERVAL_S)

    async def _keep(self, file: ProgressFile, kept: SavedProgress, release: ReleaseTracker) -> None:
        """Have the records on disk soon after each change of them, and never before the taints."""
        loop, saved = asyncio.get_running_loop(), None
        await self.tainted(READ_AFTER)
        while True:
            self._stamp(release)
            now = msgspec.structs.replace(
                kept, tainted=self._tainted_at, told=dict(self._told), claims=kept_claims(release.records.values())
            )
            if now != saved:
                await loop.run_in_executor(None, file.save, now)
                saved = now
            await asyncio.sleep(POLL_INTERVAL_S)

    def _stamp(self, release: ReleaseTracker) -> None:
        for record in release.records.values():
            if record.tainted is None and self._tainted_at is not None and self._all_tainted.is_set():
                record.tainted = max(self._tainted_at, record.seen)

    async def _watch_release(self, release: ReleaseTracker) -> None:
        kept = "kept" in self._told
        # Reading claims is many requests; the slices' own are before them.
        await self.tainted(READ_AFTER)
        while True:
            watch = asyncio.create_task(release.watch())
            try:
                while not watch.done():
                    await asyncio.wait([watch], timeout=0.1)
                    if self._passed() and not kept and not watch.done():
                        kept = True
                        for record in release.records.values():
                            record.overdue = None if record.released else record.overdue or self._now()
                        self._tell_once("kept", self._summary(release))
                watch.result()
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            self._tell_once("released", self._summary(release))
            # What was being prepared when the notice came is in the ledger only now.
            while release.complete:
                await asyncio.sleep(POLL_INTERVAL_S)
                release.look()

    async def _notify_sources(self, release: ReleaseTracker) -> None:
        await self.tainted(READ_AFTER)
        while True:
            if release.unprepared:
                await self._released()
            await asyncio.sleep(REPORT_AGAIN_AFTER_S)

    def _tell_once(self, what: What, note: str) -> None:
        """Report, unless an earlier run reported the same sentence."""
        if self._told.get(what) != note:
            self._told[what] = note
            self._tell(what, note)

    def _summary(self, release: ReleaseTracker) -> str:
        return summary(release.records.values(), None if self._state is None else self._state.noticed)

    def _passed(self) -> bool:
        deadline = None if self._state is None else self._state.deadline
        return deadline is not None and self._now() >= deadline


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
