"""A point in monotonic time by which a call must return; passed from the caller to every wait."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dra_agent.errors import RetryableError

CALL_TIMEOUT_S = 40.0
"""Seconds for one prepare or unprepare. The kubelet's timeout is 45 s, and it retries a minute or more later."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """`at` is in seconds of `time.monotonic()`, which is also the clock of asyncio's event loop."""

    at: float

    @classmethod
    def of(cls, seconds: float) -> Deadline:
        """Return the deadline that is this many seconds away."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the remaining seconds; 0.0 once it has passed."""
        return max(0.0, self.at - time.monotonic())

    def check(self, where: str) -> None:
        """Raise RetryableError once it has passed: the caller no longer waits."""
        if not self.remaining():
            raise RetryableError("its caller no longer waits for it", where=where)

    def capped(self, seconds: float) -> Deadline:
        """Return this deadline, or the one this many seconds away where that is earlier."""
        at = time.monotonic() + seconds
        return self if self.at <= at else Deadline(at)

    def at_least(self, seconds: float) -> Deadline:
        """Return this deadline, or the one this many seconds away where that is later."""
        at = time.monotonic() + seconds
        return self if self.at >= at else Deadline(at)
