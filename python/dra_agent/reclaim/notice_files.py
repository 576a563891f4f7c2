"""Follows the reclaim, and writes the notice files of all claims that have one.

The write of a change starts before the taints are published, and the taints wait for it for a short time only. Each
directory has its own writer, which retries: one that cannot be written delays neither the others nor the taints.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from dra_agent.clock import STEADY
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.device_setup.notice.directory import NoticeDirectory
from dra_agent.device_setup.notice.document import ReclaimNotice, notice
from dra_agent.errors import AgentError, RetryableError
from dra_agent.reclaim.state import ReclaimState
from dra_agent.supervisor import supervisor

HEAD_START_S = 0.02
"""Maximum seconds for which the other steps of a change wait for the files: 64 of them need 5 ms."""
WRITE_TIMEOUT_S = 5.0
"""Seconds after which a write that has not ended is reported."""
MIN_RETRY_S = 0.5
MAX_RETRY_S = 30.0
"""Seconds until a failed write is retried: doubled after each failure."""
MAX_WRITERS = 8
"""Threads, each of which a write that hangs may hold."""
KEPT_WRITERS = 2
"""Those that exist before a notice, for which the system may have no room for another."""

log = logging.getLogger(__name__)

_T = TypeVar("_T")


def notice_of(state: ReclaimState, to_wall: Callable[[datetime], datetime] = STEADY.to_wall) -> ReclaimNotice:
    """Return the content of the files in a state. `to_wall` converts a time of the state to wall time."""

    def wall(time: datetime | None) -> datetime | None:
        return None if time is None else to_wall(time)

    cause = state.cause
    if cause is None:
        return notice(state.phase, observed_at=wall(state.ended))
    since = next(active.since for active in state.active if active.signal is cause)
    began = state.noticed if state.phase == "notice" else since
    return notice(state.phase, observed_at=wall(began), deadline=wall(cause.deadline), source=cause.source)


class NoticeFiles:
    """Writes each change of the reclaim into the notice files of claims, from `start` to `stop`.

    Lives on the event loop.
    """

    def __init__(self, directory: NoticeDirectory) -> None:
        """`directory` has the current content from the state of the reclaim."""
        self._directory = directory
        self._executor = DaemonExecutor(MAX_WRITERS, "notice", kept=KEPT_WRITERS)
        self._generation = 0
        """Number of changes."""
        self._changed = asyncio.Event()
        """Set at the next change; each change has its own."""
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._passes: set[asyncio.Task[None]] = set()
        self.failures = 0
        """Writes that failed, or did not end in time, since the agent started."""

    @property
    def pending(self) -> frozenset[str]:
        """The claims whose files are being written, or wait for a retry."""
        return frozenset(self._writers)

    def start(self) -> None:
        """Write the files that earlier agents left."""
        self._begin_pass()

    async def changed(self, before: ReclaimState, after: ReclaimState) -> None:
        """Write all files if their content changes; returns after `HEAD_START_S` at the latest."""
        if notice_of(before) != notice_of(after):
            await asyncio.wait([self._begin_pass()], timeout=HEAD_START_S)

    def resume(self) -> None:
        """Write files that were left to a newer agent, if that has ended meanwhile; RetryableError if not known."""
        if self._directory.take_left():
            self._begin_pass()

    async def stop(self) -> None:
        """Stop retrying; a write that has started continues."""
        tasks = [*self._passes, *self._writers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=False)

    def _begin_pass(self) -> asyncio.Task[None]:
        self._generation += 1
        previous, self._changed = self._changed, asyncio.Event()
        previous.set()
        task = supervisor().start_task("reclaim notice files", self._write_all())
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)
        return task

    async def _write_all(self) -> None:
        """Have every directory written; a claim that is prepared meanwhile gets the current content by itself."""
        generation, retry_s = self._generation, MIN_RETRY_S
        while generation == self._generation:
            try:
                uids = await self._call("", self._directory.uids)
            except Exception as error:  # such as a shortage of descriptors: it must not end the pass
                if not isinstance(error, AgentError | OSError):
                    log.exception("the notice files are not found because of a defect")
                self._report("the notice files cannot be found", "", error)
                await self._wait_retry(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            else:
                for uid in uids:
                    if uid not in self._writers:
                        self._writers[uid] = supervisor().start_task(f"reclaim notice {uid}", self._write(uid))
                if self._writers:
                    await asyncio.wait([*self._writers.values()])
                return

    async def _write(self, uid: str) -> None:
        """Write one file until it has the current content."""
        retry_s, generation = MIN_RETRY_S, -1
        try:
            while generation != self._generation:
                generation = self._generation
                try:
                    await self._call(uid, lambda: self._directory.update(uid, Deadline.of(WRITE_TIMEOUT_S)))
                except Exception as error:  # one directory must not keep the others waiting
                    if not isinstance(error, AgentError):
                        log.exception("a notice file is not written", extra={"claim": uid})
                    self._report("a notice file is not written", uid, error)
                    await self._wait_retry(retry_s)
                    retry_s, generation = min(2 * retry_s, MAX_RETRY_S), -1
        finally:
            del self._writers[uid]

    async def _call(self, uid: str, call: Callable[[], _T]) -> _T:
        """Make a call on a thread; one that takes long is reported, and its result is still waited for."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        await asyncio.wait([future], timeout=WRITE_TIMEOUT_S)
        if not future.done():
            self._report("a notice file is not written", uid, RetryableError("the write has not ended"))
        return await future

    async def _wait_retry(self, retry_s: float) -> None:
        """Wait for the next change, or until a failed write is to be retried."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(retry_s):
                await self._changed.wait()

    def _report(self, message: str, uid: str, error: Exception) -> None:
        self.failures += 1
        log.error(message, extra={"claim": uid, "reason": str(error)})
