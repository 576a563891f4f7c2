"""Poll intervals: constant after success, growing to a limit after failures."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from dra_agent.reclaim.signal import Signal, SignalSink, SourceError
from dra_agent.retry import growing_wait

log = logging.getLogger(__name__)

MAX_INTERVAL_S = 8.0
"""Maximum seconds between two tries, however long a source has been unreachable: the shortest notice is 30 s."""
JITTER_SHARE = 0.1
"""Jitter as a part of an interval, so that hosts that started together do not poll together."""

PollFunction = Callable[[], Awaitable[Sequence[Signal]]]


class PollSchedule:
    """Delays between polls, in seconds."""

    def __init__(self, interval_s: float, *, spread: Callable[[], float] = random.random) -> None:
        """`spread` returns numbers from 0 to 1."""
        self._interval_s = interval_s
        self._spread = spread
        self._failures = 0

    def after_success(self) -> float:
        """Return the delay after a successful poll."""
        self._failures = 0
        return self._jittered(self._interval_s)

    def after_failure(self, retry_after: float | None) -> float:
        """Return the delay after a failed poll: twice as long each time, and at least Retry-After."""
        self._failures += 1
        longest_s = max(MAX_INTERVAL_S, self._interval_s)
        backoff = growing_wait(self._failures - 1, first_s=self._interval_s, max_s=longest_s)
        return self._jittered(max(backoff, retry_after or 0.0))

    def _jittered(self, seconds: float) -> float:
        return seconds * (1.0 + JITTER_SHARE * (2.0 * self._spread() - 1.0))


async def poll_forever(name: str, poll: PollFunction, schedule: PollSchedule, sink: SignalSink) -> None:
    """Poll and report until cancelled."""
    while True:
        try:
            signals = await poll()
        except SourceError as error:
            sink.failed(name, str(error))
            wait = schedule.after_failure(error.retry_after)
        except Exception as error:  # an unexpected response must not end the polling
            log.debug("unexpected response", extra={"source": name}, exc_info=True)
            sink.failed(name, f"{type(error).__name__}: {error}")
            wait = schedule.after_failure(None)
        else:
            sink.observed(name, signals)
            wait = schedule.after_success()
        await asyncio.sleep(wait)
