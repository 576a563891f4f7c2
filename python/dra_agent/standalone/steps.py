"""The steps of the queue: who needs one, and who waits for one."""

from __future__ import annotations

import asyncio
import contextlib


class Steps:
    """Used on the event loop only."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._completed = asyncio.Condition()
        self.count = 0
        """The number of steps so far. A step follows each change of a claim."""

    def is_requested(self) -> bool:
        """Whether another step is requested. Safe in other threads."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request a step: something has changed."""
        self._requested.set()

    async def wait_requested(self, timeout_s: float | None) -> None:
        """Wait until a step is requested, `timeout_s` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._requested.wait()
        self._requested.clear()

    async def completed(self) -> None:
        """Record a step, and wake those that wait for it."""
        async with self._completed:
            self.count += 1
            self._completed.notify_all()

    async def wait_after(self, steps_before: int, timeout_s: float | None = None) -> None:
        """Wait until there are more than `steps_before` steps, `timeout_s` seconds at most."""
        async with self._completed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._completed.wait_for(lambda: self.count != steps_before)
