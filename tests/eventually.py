"""Waiting for events of another thread, process or task: the only way to wait in tests.

A test waits for an event, never for time to pass. Deadlines only end a test that would hang, so they are far longer
than any machine needs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar, overload

DEADLINE_S = float(os.environ.get("DRA_AGENT_TEST_DEADLINE_S", "60"))
"""Seconds after which a wait fails. Also for subprocess timeouts and joins."""
POLL_INTERVAL_S = 0.01

_T = TypeVar("_T")
Explain = Callable[[], object] | str


def eventually(condition: Callable[[], _T], explain: Explain = "", *, within: float = DEADLINE_S) -> _T:
    """Wait until the condition returns a true value, and return it.

    AssertionError after `within` seconds, with the last value and `explain` or its result (a log, for example).
    """
    end = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > end:
            _fail(value, explain, within)
        time.sleep(POLL_INTERVAL_S)
    return value


@overload
async def eventually_async(
    condition: Callable[[], Awaitable[_T]], explain: Explain = "", *, within: float = DEADLINE_S
) -> _T: ...


@overload
async def eventually_async(condition: Callable[[], _T], explain: Explain = "", *, within: float = DEADLINE_S) -> _T: ...


async def eventually_async(
    condition: Callable[[], object], explain: Explain = "", *, within: float = DEADLINE_S
) -> object:
    """Wait as `eventually` while other tasks of the event loop run; the condition may be a coroutine function."""
    end = time.monotonic() + within
    while True:
        found = condition()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() > end:
            _fail(value, explain, within)
        await asyncio.sleep(POLL_INTERVAL_S)


def _fail(value: object, explain: Explain, within: float) -> NoReturn:
    __tracebackhide__ = True
    context = explain if isinstance(explain, str) else str(explain())
    raise AssertionError(f"not within {within:.0f} s; the last value is {value!r}{context and chr(10) + context}")
