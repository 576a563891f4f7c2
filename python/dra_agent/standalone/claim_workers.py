"""Threads that prepare and release claims, so that a device that hangs blocks its own claim only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial

from dra_agent.daemon_threads import DaemonExecutor

Job = Callable[[], None]
"""Work for a claim; it never raises."""


class InFlightClaims:
    """Claims with work in progress. Thread-safe."""

    def __init__(self, workers: ClaimWorkers | None) -> None:
        """`workers` have the threads of the jobs; None: a job is done before `begin` returns."""
        self._workers = workers
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @property
    def under_way(self) -> frozenset[str]:
        """The claims with work in progress, by uid."""
        with self._lock:
            return frozenset(self._under_way)

    def is_free(self, uid: str) -> bool:
        """Whether no work is in progress for a claim."""
        with self._lock:
            return uid not in self._under_way

    def begin(self, uid: str, job: Job) -> None:
        """Start a job. The caller has checked `is_free` and holds the lock of the queue."""
        with self._lock:
            self._under_way.add(uid)
        try:
            if self._workers is None:
                self._do(uid, job)
            else:
                self._workers.run(uid, lambda: self._do(uid, job))
        except BaseException:
            self._done(uid)
            raise

    def _do(self, uid: str, job: Job) -> None:
        try:
            job()
        finally:
            self._done(uid)

    def _done(self, uid: str) -> None:
        with self._lock:
            self._under_way.discard(uid)


MAX_CONCURRENT_CLAIMS = 256
"""Maximum concurrent claims. A device that hangs occupies at most three threads (prepare.locks)."""
STOP_TIMEOUT_S = 15.0
"""Maximum seconds that a running job is waited for at the end."""


class ClaimWorkers:
    """Jobs by claim; `run` is called on any thread, the rest on the event loop."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called on the loop after each job."""
        self._ended = ended
        self._threads = DaemonExecutor(MAX_CONCURRENT_CLAIMS, "claim", kept=1)
        self._jobs: dict[str, Future[None]] = {}
        self._began: dict[str, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Set the event loop; called before the first job."""
        self._loop = asyncio.get_running_loop()

    def run(self, uid: str, job: Job) -> None:
        """Have a job done."""
        future = self._threads.submit(job)
        self._jobs[uid] = future
        self._began[uid] = time.monotonic()
        future.add_done_callback(partial(self._schedule_removal, uid))

    async def done(self, uids: Collection[str] | None = None, *, timeout_s: float | None = None) -> bool:
        """Wait for the jobs of these claims (None: of all); False where there was none to wait for."""
        jobs = [asyncio.wrap_future(job) for uid, job in self._jobs.copy().items() if uids is None or uid in uids]
        if jobs:
            await asyncio.wait(jobs, timeout=timeout_s)
        return bool(jobs)

    @property
    def in_flight(self) -> list[str]:
        """The claims that are worked at, by uid."""
        return sorted(self._jobs)

    async def stop(self) -> None:
        """Wait for running jobs, but not for those that hang; jobs that have not started wait for the next start."""
        self._threads.shutdown()
        remaining_s = [self._began[uid] + STOP_TIMEOUT_S - time.monotonic() for uid in self._jobs]
        await self.done(timeout_s=max(0.0, *remaining_s) if remaining_s else None)

    def _schedule_removal(self, uid: str, job: Future[None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._remove, uid, job)

    def _remove(self, uid: str, job: Future[None]) -> None:
        if self._jobs.get(uid) is job:
            del self._jobs[uid], self._began[uid]
        self._ended()
