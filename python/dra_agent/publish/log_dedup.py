"""One line in the log for each trouble, however often it is met."""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_agent.errors import AgentError

MIN_INTERVAL_S = 60.0
"""Seconds between two lines about one kind of trouble that is told in other words each time."""


class LogDeduplicator:
    """Remembers what was said last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._error: AgentError | None = None
        self._said = float("-inf")

    def is_news(self, error: AgentError) -> bool:
        """Whether to say it: another kind of trouble, or other words than a minute ago."""
        before = self._error
        now = self._clock()
        if type(before) is type(error) and (str(before) == str(error) or now - self._said < MIN_INTERVAL_S):
            return False
        self._error, self._said = error, now
        return True

    def is_over(self) -> bool:
        """Whether something was said that is over now; the next trouble is news again."""
        over = self._error is not None
        self._error, self._said = None, float("-inf")
        return over
