"""An executor whose threads never keep the process alive.

`ThreadPoolExecutor` joins its threads when the interpreter ends, and asyncio waits for those of its default executor:
one call that hangs in a driver would keep the agent from stopping. Threads are started on demand and end after a while
without work, except those that the executor keeps: they exist from the start, so that work which must not fail for want
of a thread, such as that of a reclaim notice, always has one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from dra_agent.threads import NoThreadError, start_thread

IDLE_TIMEOUT_S = 10.0
"""Seconds after which a thread without work ends."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonExecutor(ThreadPoolExecutor):
    """At most `max_workers` calls at once; a subclass because asyncio takes nothing else as a default executor."""

    def __init__(self, max_workers: int, thread_name_prefix: str, *, kept: int = 0) -> None:
        """`kept`: threads that start now and do not end; with one, a later `submit` needs no other to succeed.

        Raises NoThreadError if they cannot be started.
        """
        super().__init__(max_workers, thread_name_prefix)
        self._max = max_workers
        self._kept = kept
        self._name = thread_name_prefix
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._started = 0
        self._running = 0
        self._idle = 0
        self._closed = False
        with self._lock:
            for _ in range(kept):
                self._start()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have a call made; it waits for a thread if the system has no room for another one.

        Raises NoThreadError if there is none to wait for, and RuntimeError after `shutdown`.
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.append((future, lambda: fn(*args, **kwargs)))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._running < self._max:
                self._start_for_job()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls and drop those that have not started; never waits, regardless of `wait`."""
        with self._lock:
            self._closed = True
            dropped, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for future, _ in dropped:
            future.cancel()

    def finish(self) -> None:
        """Shut down, and wait for the calls that run."""
        self.shutdown()
        with self._lock:
            self._changed.wait_for(lambda: not self._running)

    def _start_for_job(self) -> None:
        try:
            self._start()
        except NoThreadError:  # those that run take the job
            if not self._running:
                self._jobs.pop()
                raise

    def _start(self) -> None:
        start_thread(f"{self._name}_{self._started + 1}", self._work)
        self._started += 1
        self._running += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - raised from the future
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, call

    def _next(self) -> _Job | None:
        with self._lock:
            while not self._jobs:
                self._idle += 1
                is_kept = self._running <= self._kept
                woken = not self._closed and self._changed.wait(None if is_kept else IDLE_TIMEOUT_S)
                self._idle -= 1
                if not self._jobs and (self._closed or (not woken and self._running > self._kept)):
                    self._running -= 1
                    self._changed.notify_all()  # to `finish`
                    return None
            job = self._jobs.popleft()
            if len(self._jobs) > self._idle and self._running < self._max:
                # The system had no room for a thread when they came, and may have now.
                with suppress(NoThreadError):
                    self._start()
            return job
