"""Runs work on claims on threads: sequential per claim, and no caller waits longer than its own deadline.

A vendor library that hangs blocks only its thread: the kubelet's retries join the running work; of other
claims for the device few may wait (prepare.locks), and the process can end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Work:
    operation: str
    key: Hashable
    thread: Future[Any]
    done: asyncio.Future[Any]
    began: float
    """In the loop's time."""


class ClaimExecutor:
    """Runs work of each claim sequentially; used on one event loop."""

    def __init__(self, threads: int) -> None:
        self._executor = DaemonExecutor(threads, "claims")
        self._work: dict[str, _Work] = {}

    @property
    def in_flight(self) -> list[str]:
        """Return the work in progress."""
        return [f"{work.operation} claim {uid}" for uid, work in self._work.items()]

    async def run(self, uid: str, operation: str, key: Hashable, call: Callable[[], _T], deadline_s: float) -> _T:
        """Run `call` after earlier work of the claim, or join a run of the same `operation` and `key`.

        Raises RetryableError if it has not ended at `deadline_s`, in the loop's time. It then continues, and no caller
        waits for it.
        """
        while True:
            work = self._work.get(uid)
            if work is None:
                work = self._begin(uid, operation, key, call)
            same_call = (work.operation, work.key) == (operation, key)
            if not await _ends(work.done, deadline_s):
                # Work that has not started is dropped if its caller no longer waits.
                work.thread.cancel()
                raise RetryableError(
                    f"still {work.operation} it; the kubelet will retry",
                    where=f"claim {uid}",
                    hint="if it persists, `dra-agent doctor` and the log name the call that hangs",
                )
            if same_call and not work.done.cancelled():
                result: _T = work.done.result()
                return result

    def close(self) -> None:
        """Start no more work; work that hangs is not waited for."""
        self._executor.shutdown()

    def worth_waiting(self, grace: float) -> float:
        """Return the seconds until everything that runs now has run for `grace` seconds, or has ended before.

        Work that has run for longer hangs, and does not delay a stop.
        """
        now = asyncio.get_running_loop().time()
        return max((work.began + grace - now for work in self._work.values()), default=0.0)

    async def finished(self, grace: float) -> bool:
        """Wait until nothing is worked on; False where something still is after `worth_waiting`."""
        running = [work.done for work in self._work.values()]
        if running:
            await asyncio.wait(running, timeout=max(0.0, self.worth_waiting(grace)))
        return not self._work

    def _begin(self, uid: str, operation: str, key: Hashable, call: Callable[[], Any]) -> _Work:
        thread = self._executor.submit(call)
        work = _Work(operation, key, thread, asyncio.wrap_future(thread), asyncio.get_running_loop().time())
        self._work[uid] = work
        work.done.add_done_callback(lambda done: self._ended(uid, done))
        return work

    def _ended(self, uid: str, done: asyncio.Future[Any]) -> None:
        del self._work[uid]
        if not done.cancelled():
            done.exception()  # waiting callers get the error; without one, it was logged


async def _ends(future: asyncio.Future[Any], deadline_s: float) -> bool:
    remaining_s = deadline_s - asyncio.get_running_loop().time()
    await asyncio.wait({future}, timeout=max(0.0, remaining_s))
    return future.done()
