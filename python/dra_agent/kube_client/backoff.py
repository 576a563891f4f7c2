"""How long to wait before the next try: exponentially longer, never in step with other nodes."""

from __future__ import annotations

import random
from collections.abc import Callable

MAX_RETRY_AFTER_S = 300.0
"""Seconds; a server that asks for more than this is asked again all the same."""
LIST_FIRST_S = 5.0
"""Seconds over which the first tries after a failure are spread."""
LIST_MAX_S = 30.0


class Backoff:
    """Delays of one activity. `reset` after a success."""

    def __init__(
        self,
        *,
        first: float = 0.5,
        longest: float = 60.0,
        factor: float = 2.0,
        spread: float = 0.5,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`first` and `longest` are seconds; `spread` is the share of a step that is random, 1.0 being full jitter.

        `jitter` gives numbers from 0 up to 1.
        """
        self._first = first
        self._longest = longest
        self._factor = factor
        self._spread = spread
        self._jitter = jitter
        self.failures = 0

    @classmethod
    def for_lists(cls, *, longest: float = LIST_MAX_S) -> Backoff:
        """For lists and watches, which every agent of a cluster begins again when its API server has been away.

        Full jitter from the first delay on: 5,000 agents spread their first tries evenly over `LIST_FIRST_S`.
        """
        return cls(first=LIST_FIRST_S, longest=longest, spread=1.0)

    def reset(self) -> None:
        """Begin anew: something went well."""
        self.failures = 0

    def delay(self, error: BaseException | None = None) -> float:
        """Give the seconds to wait after one more failure.

        An exponential step, of which `spread` is random, so that a thousand agents do not return at one moment. What
        the server asked for (Retry-After) is the least, and spread out by up to a tenth.
        """
        step = min(self._longest, self._first * self._factor ** min(self.failures, 64))
        self.failures += 1
        wait = step * (1.0 - self._spread + self._spread * self._jitter())
        asked = getattr(error, "retry_after", None)
        if asked is None:
            return wait
        return max(wait, min(float(asked), MAX_RETRY_AFTER_S) * (1.0 + 0.1 * self._jitter()))
