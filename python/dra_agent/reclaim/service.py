"""The reclaim service: the sources' tasks, the merged state, and the components that act on it.

A change is persisted before listeners are notified, unless the disk is too slow for the notice; and before the
response to the operator who requested it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dra_agent.clock import STEADY, SteadyClock
from dra_agent.errors import AgentError
from dra_agent.reclaim.change_log import log_change
from dra_agent.reclaim.signal import RecallingSource, Signal, SignalSource
from dra_agent.reclaim.signal_tracker import SignalTracker, SourceHealth
from dra_agent.reclaim.state import (
    OPERATOR,
    ReclaimState,
    adopt_requests,
    apply,
    dismiss,
    expire,
    is_past,
    keep_sources,
    next_expiry,
)
from dra_agent.reclaim.state_file import OtherState, StateFile
from dra_agent.reclaim.state_saver import StateSaver
from dra_agent.reclaim.status import Progress
from dra_agent.retry import Backoff
from dra_agent.supervisor import supervisor

if TYPE_CHECKING:
    from dra_agent.reclaim.notice_files import NoticeFiles

log = logging.getLogger(__name__)

SAVE_HEAD_START_S = 0.01
"""Seconds for which listeners wait for the disk: an idle one needs 3 ms. A busy one (100 ms were
measured) is not waited for: a notice is received again after a crash of the agent, but its time is lost."""
SAVE_TIMEOUT_S = 0.5
"""Seconds for which the next change waits for the disk."""
OPERATOR_SAVE_TIMEOUT_S = 5.0
"""Seconds for which an operator's request waits for the disk before it is reported as not saved."""

DEADLINE_MARGIN_S = 1.0
"""Seconds before the deadline after which nothing is waited for."""
SOURCE_STOP_TIMEOUT_S = 2.0
"""Maximum seconds for which a change of the configuration waits for the sources that it replaces."""
SOURCE_RETRY_S = 5.0
"""Seconds until a source that has failed is started again."""
MAX_EXPIRY_CHECK_S = 30.0
"""Maximum seconds between two checks for expired signals."""

Changed = Callable[[ReclaimState, ReclaimState], Awaitable[None]]
"""Called with the state before and after, one change at a time; it starts long work in the background and returns."""
Step = Callable[[ReclaimState, datetime], ReclaimState]


class Drain(Protocol):
    """Releases the claims of a notice: DrainController, or StandaloneDrain without Kubernetes."""

    @property
    def progress(self) -> Progress:
        """Progress of the release of claims."""


class ReclaimService:
    """Merges the signals of all sources, saves the state, and notifies the components that act on it.

    Works from `start` to `stop`.
    """

    def __init__(
        self,
        state_dir: Path,
        boot: str,
        sources: Sequence[SignalSource],
        *,
        is_newest: Callable[[], bool] = lambda: True,
        clock: SteadyClock = STEADY,
        now: Callable[[], datetime] | None = None,
        retries: Backoff | None = None,
    ) -> None:
        """Read the state of an earlier run of this boot; `state_dir` must exist.

        `is_newest`: whether this agent saves the state, if several share a directory for a while.
        `now`: in place of the clock's. `retries`: the delays between attempts to save it.
        """
        file = StateFile(state_dir, clock)
        self._now = now or clock.now
        self._listeners: list[Changed] = []
        self._pending_signals: list[Signal] = []
        self._woken = asyncio.Event()
        self._lock = asyncio.Lock()
        self._merging: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._requested: Signal | None = None
        """The last request of an operator to this agent."""
        self._listening: list[asyncio.Task[None]] = []
        self._failed_notifications: set[str] = set()
        self._drain: Drain | None = None
        self._notice_files: NoticeFiles | None = None
        self.notices = 0
        """Notices that started since the agent started."""
        self.cancelled = 0
        """Notices that ended."""
        self.state = file.load(boot)
        self._saver = StateSaver(file, self.state, is_newest=is_newest, backoff=retries)
        self._sources, self._tracker = self._recall(sources)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until shortly before the node is reclaimed; None without a deadline."""
        deadline = self.state.deadline
        return None if deadline is None else (deadline - self._now()).total_seconds() - DEADLINE_MARGIN_S

    def attach_drain(self, drain: Drain) -> None:
        """Report the progress of `drain`."""
        self._drain = drain

    def attach_notice_files(self, files: NoticeFiles) -> None:
        """Write `files` at each change, and report failures."""
        self._notice_files = files
        self.on_change(files.changed)

    @property
    def unsaved(self) -> str:
        """Why a restart of the agent would lose the last change; "" if it is on disk."""
        return self._saver.problem

    def progress(self) -> Progress:
        """Return the progress of the release of claims."""
        return Progress() if self._drain is None else self._drain.progress

    def notice_failures(self) -> int:
        """Return the number of failed writes of notice files."""
        return 0 if self._notice_files is None else self._notice_files.failures

    def on_change(self, listener: Changed) -> None:
        """Subscribe to changes; the current state is `state`."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start the sources."""
        await self._keep_sources()
        if self.state.active:
            cause = self.state.cause
            log.warning(
                "continue a reclaim from before the restart of the agent",
                extra={"phase": self.state.phase, "source": cause.source if cause else ""},
            )
        self._merging = supervisor().loop("reclaim", self._run)
        self._listen()

    async def replace_sources(self, sources: Sequence[SignalSource]) -> None:
        """Listen to these sources from now on, as after a restart of the agent.

        Signals of a source with the same name stay until it reports; those of other sources are dropped.
        """
        listening, self._listening = self._listening, []
        for task in listening:
            task.cancel()
        if listening:
            await asyncio.wait(listening, timeout=SOURCE_STOP_TIMEOUT_S)
        self._sources, self._tracker = self._recall(sources)
        self._pending_signals = [signal for signal in self._pending_signals if signal.source in self._names]
        await self._keep_sources()
        self._listen()

    async def stop(self) -> None:
        """Stop listening; the state stays on disk."""
        with contextlib.suppress(TimeoutError):
            # A pending change is persisted first: it must not be lost.
            async with asyncio.timeout(2 * SAVE_TIMEOUT_S), self._lock:
                pass
        tasks = [*self._listening, *(task for task in (self._merging, self._following) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._saver.stop(SAVE_TIMEOUT_S)

    async def begin(self, kind: str, *, deadline: datetime | None, description: str) -> None:
        """Start an operator's hint or notice; it is on disk when this returns, or `unsaved` has the reason."""
        signal = Signal(OPERATOR, "hint" if kind == "hint" else "notice", OPERATOR, description, deadline)
        log.warning(f"reclaim {signal.kind} by the operator", extra={"what": description})
        await self._request(signal, lambda state, now: apply(state, signal, now))

    async def cancel(self, *, everything: bool) -> None:
        """Withdraw the operator's signal, or dismiss the signals of all sources; saved as in `begin`."""
        log.warning("reclaim cancelled by the operator", extra={"everything": everything})
        clear = Signal(OPERATOR, "clear", OPERATOR, "")
        await self._request(clear, lambda state, now: apply(dismiss(state, now) if everything else state, clear, now))

    async def follow_other_agents(self) -> None:
        """Act on operator requests that another agent of a rolling update has saved, and save what it did not.

        To be called repeatedly: the other one is another process, and may end at any time.
        """
        if self._saver.is_changed and (other := await self._saver.changes()) is not None:
            await self._change(lambda state, now: self._adopt(other, state, now))
        self._saver.resume()

    async def released(self) -> None:
        """Notify every source that all claims of the node are released; may be called repeatedly."""
        for source in self._sources:
            name = source.names[0]
            try:
                await source.released()
            except Exception:  # one source must not keep the others waiting
                if name not in self._failed_notifications:
                    log.exception("a source could not be notified that claims are released", extra={"source": name})
                self._failed_notifications.add(name)
            else:
                self._failed_notifications.discard(name)

    def source_health(self) -> list[SourceHealth]:
        """Return the health of each source."""
        return self._tracker.source_health()

    @property
    def _names(self) -> frozenset[str]:
        return frozenset({OPERATOR, *(name for source in self._sources for name in source.names)})

    def _recall(self, sources: Sequence[SignalSource]) -> tuple[list[SignalSource], SignalTracker]:
        """Restore the state of the sources from the active signals; returns them with their tracker."""
        known = [active.signal for active in self.state.active if active.signal.source != OPERATOR]
        for source in sources:
            if isinstance(source, RecallingSource):
                source.recall([signal for signal in known if signal.source in source.names])
        names = [name for source in sources for name in source.names]
        # A signal that is over may be reported again after its source reports another: the first successful poll
        # decides.
        past_events = [Signal(past.source, "hint", past.event, "") for past in self.state.past if past.once == "word"]
        active = {(signal.source, signal.event) for signal in known}
        known += [
            past_event
            for past_event in past_events
            if past_event.source in names and (past_event.source, past_event.event) not in active
        ]
        return list(sources), SignalTracker(names, self._enqueue_signal, known=known)

    async def _keep_sources(self) -> None:
        names = self._names
        await self._change(lambda state, now: keep_sources(state, names, now))

    def _listen(self) -> None:
        for source in self._sources:
            following = partial(self._follow, source, self._tracker)
            self._listening.append(supervisor().loop("reclaim source", following, of=source.names[0]))

    async def _follow(self, source: SignalSource, tracker: SignalTracker) -> None:
        while True:
            try:
                await source.run(tracker)
            except AgentError as error:
                tracker.failed(source.names[0], str(error))
            except Exception as error:  # one source must not take the others with it
                log.exception("a source of reclaim notices failed", extra={"source": source.names[0]})
                tracker.failed(source.names[0], f"{type(error).__name__}: {error}")
            await asyncio.sleep(SOURCE_RETRY_S)

    def _enqueue_signal(self, signal: Signal) -> None:
        self._pending_signals.append(signal)
        self._woken.set()

    async def _run(self) -> None:
        while True:
            expiry = next_expiry(self.state)
            # Timers of the loop stop while the host is suspended.
            timeout_s = (
                None if expiry is None else min(MAX_EXPIRY_CHECK_S, max(0.1, (expiry - self._now()).total_seconds()))
            )
            if not self._pending_signals:  # else this is the start after a failure
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._woken.wait()
            self._woken.clear()
            await self._change(self._apply_pending)

    def _apply_pending(self, state: ReclaimState, now: datetime) -> ReclaimState:
        for signal in self._pending_signals:
            if signal.kind != "clear" and is_past(state, signal):
                log.info(
                    "an event from before the host's boot is ignored",
                    extra={"source": signal.source, "event": signal.event, "what": signal.description},
                )
            state = apply(state, signal, now)
        state = expire(state, now)
        self._pending_signals = []  # only now: they are applied again after a failure
        return state

    async def _request(self, signal: Signal, step: Step) -> None:
        """Act on a request after all that other agents have saved, and wait until it is on disk."""

        def requested(state: ReclaimState, now: datetime) -> ReclaimState:
            self._requested = signal
            return step(state, now)

        await self._follow_now()
        await self._change(requested, is_request=True)
        await self._saver.wait(OPERATOR_SAVE_TIMEOUT_S)
        if self._saver.is_stale:
            await self._follow_now()
            await self._saver.confirm(OPERATOR_SAVE_TIMEOUT_S)

    def _adopt(self, other: OtherState, state: ReclaimState, now: datetime) -> ReclaimState:
        if not self._saver.accept(other):
            return state
        state = adopt_requests(state, other.known, other.current, now)
        if self._saver.has_request and self._requested is not None:
            state = apply(state, self._requested, now)  # not on disk before, so it is the later one
        return state

    async def _follow_now(self) -> None:
        """Act on what another agent has saved; a disk that hangs delays the request for a short time only."""
        if not self._saver.is_changed:
            return
        if self._following is None or self._following.done():
            self._following = supervisor().start_task("reclaim follow", self.follow_other_agents(), awaited=True)
        ended, _ = await asyncio.wait([self._following], timeout=SAVE_TIMEOUT_S)
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("other agents of this node cannot be followed", extra={"reason": str(error)})

    async def _change(self, step: Step, *, is_request: bool = False) -> None:
        async with self._lock:
            before, after = self.state, step(self.state, self._now())
            if after == before and not (is_request and self._saver.is_changed):
                # An operator may repeat a request that could not be saved.
                await self._saver.confirm(SAVE_TIMEOUT_S)
                return
            self.state = after
            self.notices += before.noticed is None and after.noticed is not None
            self.cancelled += before.noticed is not None and after.noticed is None
            try:
                self._saver.begin(after, is_request=is_request)
                await self._saver.wait(SAVE_HEAD_START_S)
                log_change(before, after, self._now())
            except Exception:  # the change must still be acted on
                log.exception("a change of the reclaim is not saved")
            for listener in self._listeners:
                try:
                    await listener(before, after)
                except Exception:  # the others must still be notified
                    log.exception("a change of the reclaim was not acted on")
            if not await self._saver.wait(SAVE_TIMEOUT_S):
                log.error("the notice is acted on before it is on disk: the disk takes too long")
