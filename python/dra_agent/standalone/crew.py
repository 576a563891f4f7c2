"""Threads that prepare and release claims, so that a device that hangs keeps nobody but its own claim waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from dra_agent.standalone.work import Job

MOST = 64
"""Claims that are worked at at the same time: more than a host with eight GPUs in seven slices has."""


class Crew:
    """Jobs by claim; `run` is called on any thread, the rest on the event loop."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called on the loop after each job."""
        self._ended = ended
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="claim")
        self._jobs: dict[str, Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Take note of the loop; before the first job."""
        self._loop = asyncio.get_running_loop()

    def run(self, uid: str, job: Job) -> None:
        """Have a job done."""
        future = self._threads.submit(job)
        self._jobs[uid] = future
        future.add_done_callback(partial(self._tell, uid))

    async def done(self, uids: Collection[str] | None = None, *, at_most: float | None = None) -> bool:
        """Wait for the jobs of these claims (None: of all); False where there was none to wait for."""
        jobs = [asyncio.wrap_future(job) for uid, job in self._jobs.copy().items() if uids is None or uid in uids]
        if jobs:
            await asyncio.wait(jobs, timeout=at_most)
        return bool(jobs)

    async def stop(self) -> None:
        """Wait for what is being done; what has not begun is left to the next start."""
        stop = partial(self._threads.shutdown, wait=True, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, stop)

    def _tell(self, uid: str, job: Future[None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._forget, uid, job)

    def _forget(self, uid: str, job: Future[None]) -> None:
        if self._jobs.get(uid) is job:
            del self._jobs[uid]
        self._ended()
