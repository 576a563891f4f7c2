"""Repeats an attempt to write a state elsewhere, after each change of the state and after failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NoReturn

from dra_agent.retry import Backoff


async def reconcile(
    changed: asyncio.Event, attempt: Callable[[Backoff], Awaitable[float | None]], backoff: Backoff
) -> NoReturn:
    """Call `attempt` now and each time `changed` is set, until the task is cancelled.

    `attempt` returns the seconds to the next one, None if only a change needs another. A running attempt is never
    cancelled for the next one: its request could arrive after that.
    """
    while True:
        changed.clear()
        wait_s = await attempt(backoff)
        if wait_s is None:
            backoff.reset()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await changed.wait()
