"""Runs work on claims on threads: sequential per claim, and no caller waits longer than its own deadline.

A vendor library that hangs blocks only its thread: the kubelet's retries join the running work; of other
claims for the device few may wait (prepare.locks), and the process can end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError

_T = TypeVar("_T")


@dataclass(slots=True)
class _Work:
    operation: str
    key: Hashable
    thread: Future[Any]
    began: float
    """In the loop's time."""
    ended: bool = False
    """Whether the loop knows that it has ended."""
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    """One for each waiting caller."""


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
            if not await _ends(work, deadline_s):
                # Work that has not started is dropped if its caller no longer waits.
                work.thread.cancel()
                raise RetryableError(
                    f"still {work.operation} it; the kubelet will retry",
                    where=f"claim {uid}",
                    hint="if it persists, `dra-agent doctor` and the log name the call that hangs",
                )
            if same_call and not work.thread.cancelled():
                result: _T = work.thread.result()
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
        deadline_s = asyncio.get_running_loop().time() + max(0.0, self.worth_waiting(grace))
        await asyncio.gather(*(_ends(work, deadline_s) for work in self._work.values()))
        return not self._work

    def _begin(self, uid: str, operation: str, key: Hashable, call: Callable[[], Any]) -> _Work:
        loop = asyncio.get_running_loop()
        work = _Work(operation, key, self._executor.submit(call), loop.time())
        self._work[uid] = work

        def ended(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop was closed while the work hung
                loop.call_soon_threadsafe(self._ended, uid, work)

        work.thread.add_done_callback(ended)
        return work

    def _ended(self, uid: str, work: _Work) -> None:
        del self._work[uid]
        work.ended = True
        for waiter in work.waiters:
            _wake(waiter)


async def _ends(work: _Work, deadline_s: float) -> bool:
    """Wait until the work has ended; False if it has not at `deadline_s`, in the loop's time.

    Not asyncio.wait on a wrapped future, which takes another turn of the loop for each claim.
    """
    if work.ended:
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    work.waiters.add(waiter)
    timer = loop.call_at(deadline_s, _wake, waiter)
    try:
        await waiter
    finally:
        timer.cancel()
        work.waiters.discard(waiter)
    return work.ended


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
