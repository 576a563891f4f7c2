"""Runs work on claims on threads, its own or its callers': sequential per claim; no caller waits beyond its deadline.

A vendor library that hangs blocks only its thread: the kubelet's retries join the running work; of other
claims for the device few may wait (prepare.locks), and the process can end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError

_T = TypeVar("_T")


@dataclass(slots=True)
class _Work:
    operation: str
    key: Hashable
    thread: Future[Any] | None
    """None: it runs on the thread of its caller."""
    began: float
    """In the loop's time, which is that of time.monotonic."""
    ended: bool = False
    value: Any = None
    error: BaseException | None = None
    """Value and error of ended work that ran on the thread of its caller."""
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    """One for each waiting caller."""


class ClaimSlot:
    """Work of a claim on the thread of its caller, as a context."""

    def __init__(self, executor: ClaimExecutor, uid: str, work: _Work) -> None:
        self._executor = executor
        self._uid = uid
        self._work = work

    def joinable(self, key: Hashable) -> None:
        """Let callers with the same operation and key get its result, or its error."""
        self._work.key = key

    def result(self, value: object) -> None:
        """Set the result."""
        self._work.value = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.error = error
        self._executor.end(self._uid, self._work)


class ClaimExecutor:
    """Runs work of each claim sequentially. `run` is for one event loop, `begin` for any thread."""

    def __init__(self, threads: int) -> None:
        """`threads` is the maximum of concurrent work: of work on own threads, and of work on its callers'."""
        self._executor = DaemonExecutor(threads, "claims", kept=1)
        self._threads = threads
        self._lock = threading.Lock()
        self._work: dict[str, _Work] = {}
        self._of_callers = 0

    @property
    def in_flight(self) -> list[str]:
        """Return the work in progress."""
        return [f"{work.operation} claim {uid}" for uid, work in self._running()]

    def waiters(self, uid: str) -> int | None:
        """Return how many callers wait for the work of a claim; None if it has none."""
        with self._lock:
            work = self._work.get(uid)
            return None if work is None else len(work.waiters)

    def begin(self, uid: str, operation: str) -> ClaimSlot | None:
        """Begin work of a claim on the calling thread; None while other work of the claim, or too much work, runs."""
        with self._lock:
            if uid in self._work or self._of_callers >= self._threads:
                return None
            work = self._work[uid] = _Work(operation, object(), None, time.monotonic())
            self._of_callers += 1
        return ClaimSlot(self, uid, work)

    async def run(self, uid: str, operation: str, key: Hashable, call: Callable[[], _T], deadline_s: float) -> _T:
        """Run `call` after earlier work of the claim, or join a run of the same `operation` and `key`.

        Raises RetryableError if it has not ended at `deadline_s`, in the loop's time. It then continues, and no caller
        waits for it.
        """
        while True:
            work = self._joined_or_begun(uid, operation, key, call)
            if not await self._ends(work, deadline_s):
                # Work that has not started is dropped if its caller no longer waits.
                if work.thread is not None:
                    work.thread.cancel()
                raise still_running(work.operation, uid)
            # Work on its caller's thread gets its key when the claim was read.
            if (work.operation, work.key) == (operation, key) and not (work.thread and work.thread.cancelled()):
                result: _T = work.thread.result() if work.thread else _result_of(work)
                return result

    def close(self) -> None:
        """Start no more work; work that hangs is not waited for."""
        self._executor.shutdown()

    def worth_waiting(self, grace: float) -> float:
        """Return the seconds until everything that runs now has run for `grace` seconds, or has ended before.

        Work that has run for longer hangs, and does not delay a stop.
        """
        now = asyncio.get_running_loop().time()
        return max((work.began + grace - now for _, work in self._running()), default=0.0)

    async def finished(self, grace: float) -> bool:
        """Wait until nothing is worked on; False where something still is after `worth_waiting`."""
        deadline_s = asyncio.get_running_loop().time() + max(0.0, self.worth_waiting(grace))
        await asyncio.gather(*(self._ends(work, deadline_s) for _, work in self._running()))
        return not self._work

    def end(self, uid: str, work: _Work) -> None:
        """Wake the callers that wait for this work, on any thread."""
        with self._lock:
            del self._work[uid]
            if work.thread is None:
                self._of_callers -= 1
            work.ended = True
            waiters = tuple(work.waiters)
        for waiter in waiters:
            with suppress(RuntimeError):  # the loop was closed while the work hung
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def _running(self) -> list[tuple[str, _Work]]:
        with self._lock:
            return list(self._work.items())

    def _joined_or_begun(self, uid: str, operation: str, key: Hashable, call: Callable[[], Any]) -> _Work:
        with self._lock:
            if (work := self._work.get(uid)) is not None:
                return work
            thread = self._executor.submit(call)
            work = self._work[uid] = _Work(operation, key, thread, time.monotonic())
        thread.add_done_callback(lambda _: self.end(uid, work))
        return work

    async def _ends(self, work: _Work, deadline_s: float) -> bool:
        """Wait until the work has ended; False if it has not at `deadline_s`, in the loop's time.

        Not asyncio.wait on a wrapped future, which takes another turn of the loop for each claim.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if work.ended:
                return True
            work.waiters.add(waiter)
        timer = loop.call_at(deadline_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            with self._lock:
                work.waiters.discard(waiter)
        return work.ended


def _result_of(work: _Work) -> Any:
    if work.error is not None:
        raise work.error
    return work.value


def still_running(operation: str, uid: str) -> RetryableError:
    """Return the error of a call that ends before its work."""
    return RetryableError(
        f"still {operation} it; the kubelet will retry",
        where=f"claim {uid}",
        hint="if it persists, `dra-agent doctor` and the log name the call that hangs",
    )


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
