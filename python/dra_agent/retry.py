"""Delays between attempts: exponential, with jitter, and at least Retry-After of the server.

While an activity is urgent, its delays are at most `URGENT_RETRY_S` long, whatever the server requests: the node ends
soon, and few nodes are urgent at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

MAX_RETRY_AFTER_S = 30.0
"""Upper limit for the Retry-After that a server requests."""
URGENT_RETRY_S = 1.0
"""The longest delay while an activity is urgent."""
LIST_FIRST_S = 5.0
"""Seconds over which the first tries after a failure are spread."""
LIST_MAX_S = 30.0


def growing_wait(failures: int, *, first_s: float, max_s: float, factor: float = 2.0) -> float:
    """Return the seconds to wait after a failure that follows `failures` others: `first_s` grows by `factor` each time.

    The wait is never longer than `max_s`.
    """
    return min(max_s, first_s * factor ** min(failures, 64))


class Backoff:
    """Delays of one activity, with jitter. Call `reset` after a success."""

    def __init__(
        self,
        *,
        first: float = 0.5,
        longest: float = 60.0,
        factor: float = 2.0,
        spread: float = 0.5,
        jitter: Callable[[], float] = random.random,
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`first` and `longest` are seconds; `spread` is the random share of a step, 1.0 being full jitter.

        `jitter` returns numbers from 0 up to 1. `urgent` returns whether the node is being reclaimed.
        """
        self._first = first
        self._longest = longest
        self._factor = factor
        self._spread = spread
        self._jitter = jitter
        self._urgent = urgent
        self.failures = 0

    @classmethod
    def for_lists(cls, *, longest: float = LIST_MAX_S, urgent: Callable[[], bool] = lambda: False) -> Backoff:
        """Return delays for lists and watches, which all agents of a cluster restart after an outage of the API server.

        Full jitter from the first delay on: 5,000 agents spread their first tries evenly over `LIST_FIRST_S`.
        """
        return cls(first=LIST_FIRST_S, longest=longest, spread=1.0, urgent=urgent)

    def reset(self) -> None:
        """Start again from the first delay."""
        self.failures = 0

    def delay(self, error: BaseException | None = None) -> float:
        """Record a failure and return the seconds to wait.

        The delay is an exponential step, of which the share `spread` is random, so that a thousand agents do not retry
        at the same moment. A `retry_after` attribute of `error` (the Retry-After header) is the minimum; up to a tenth
        is added to it. While it is urgent, Retry-After is ignored.
        """
        step = growing_wait(self.failures, first_s=self._first, max_s=self._longest, factor=self._factor)
        self.failures += 1
        wait = step * (1.0 - self._spread + self._spread * self._jitter())
        if self._urgent():
            return min(wait, URGENT_RETRY_S * (0.5 + 0.5 * self._jitter()))
        retry_after = getattr(error, "retry_after", None)
        if retry_after is None:
            return wait
        return max(wait, min(float(retry_after), MAX_RETRY_AFTER_S) * (1.0 + 0.1 * self._jitter()))


KEYED_FIRST_S = 1.0
KEYED_MAX_S = 60.0


@dataclass(slots=True)
class _Wait:
    retry_at: float
    failures: int
    """Before the last one."""


class KeyedBackoff:
    """Exponential delays by key: 1 s after the first failure, twice as long after each further one, at most a minute.

    `clock` returns monotonic seconds. Not safe for threads.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def failed(self, key: str) -> float:
        """Record a failure and return the seconds until the next attempt."""
        known = self._waits.get(key)
        failures = 0 if known is None else known.failures + 1
        wait = growing_wait(failures, first_s=KEYED_FIRST_S, max_s=KEYED_MAX_S)
        self._waits[key] = _Wait(self._clock() + wait, failures)
        return wait

    def done(self, key: str) -> None:
        """Remove the failures of a key."""
        self._waits.pop(key, None)

    def due(self, key: str) -> bool:
        """Whether no delay is pending for a key."""
        known = self._waits.get(key)
        return known is None or self._clock() >= known.retry_at

    def next_in(self, besides: Collection[str] = ()) -> float | None:
        """Return the seconds until the earliest pending attempt, or None. Keys in `besides` are ignored."""
        waits = [wait.retry_at for key, wait in self._waits.items() if key not in besides]
        return max(0.0, min(waits) - self._clock()) if waits else None
