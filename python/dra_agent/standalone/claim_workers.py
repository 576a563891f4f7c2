"""Threads that prepare and release claims, so that a device that hangs keeps nobody but its own claim waiting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.standalone.in_flight import Job

MOST = 256
"""Claims that are worked at at the same time. Of those for a sick device three keep a thread (prepare.locks)."""
STOP_TIMEOUT_S = 15.0
"""Seconds that a job may have taken until it is not waited for at the end."""


class ClaimWorkers:
    """Jobs by claim; `run` is called on any thread, the rest on the event loop."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called on the loop after each job."""
        self._ended = ended
        self._threads = DaemonExecutor(MOST, "claim")
        self._jobs: dict[str, Future[None]] = {}
        self._began: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Take note of the loop; before the first job."""
        self._loop = asyncio.get_running_loop()

    def run(self, uid: str, job: Job) -> None:
        """Have a job done."""
        future = self._threads.submit(job)
        self._jobs[uid] = future
        self._began[uid] = time.monotonic()
        future.add_done_callback(partial(self._tell, uid))

    async def done(self, uids: Collection[str] | None = None, *, at_most: float | None = None) -> bool:
        """Wait for the jobs of these claims (None: of all); False where there was none to wait for."""
        jobs = [asyncio.wrap_future(job) for uid, job in self._jobs.copy().items() if uids is None or uid in uids]
        if jobs:
            await asyncio.wait(jobs, timeout=at_most)
        return bool(jobs)

    @property
    def busy(self) -> list[str]:
        """The claims that are worked at, by uid."""
        return sorted(self._jobs)

    async def stop(self) -> None:
        """Wait for what is being done, though not for what hangs; what has not begun is left to the next start."""
        self._threads.shutdown()
        left = [self._began[uid] + STOP_TIMEOUT_S - time.monotonic() for uid in self._jobs]
        await self.done(at_most=max(0.0, *left) if left else None)

    def _tell(self, uid: str, job: Future[None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._forget, uid, job)

    def _forget(self, uid: str, job: Future[None]) -> None:
        if self._jobs.get(uid) is job:
            del self._jobs[uid], self._began[uid]
        self._ended()
