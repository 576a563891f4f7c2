"""Writes on a thread that do not outlive their task: a canceled task ends after its write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dra_agent.supervisor import on_thread

END_TIMEOUT_S = 5.0
"""Seconds for which a canceled task waits for a write that has begun: on a disk that hangs, it may never end."""

_T = TypeVar("_T")


async def write_on_thread(write: Callable[[], _T], *, timeout_s: float = END_TIMEOUT_S) -> _T:
    """Call `write` on a thread of the event loop's executor, so that a slow disk delays no other task.

    If the task is canceled meanwhile, wait for the end of the call first, at most `timeout_s`. Raises what the call
    raises.
    """
    future = on_thread(write)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future], timeout=timeout_s)
        if not future.cancel() and not future.cancelled():
            future.exception()  # it is not logged: no task waits for it
        raise
