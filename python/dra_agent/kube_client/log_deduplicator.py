"""Failures that repeat are logged once."""

from __future__ import annotations

import time
from collections.abc import Callable

from dra_agent.errors import AgentError

MIN_INTERVAL_S = 60.0
"""Minimum seconds between two log lines of one kind with different text."""


class LogDeduplicator:
    """Suppresses repeated log lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._error: AgentError | None = None
        self._logged_at = float("-inf")

    def should_log(self, error: AgentError) -> bool:
        """Return whether to log it: another kind of failure, or another text after a minute."""
        before = self._error
        now = self._clock()
        if type(before) is type(error) and (str(before) == str(error) or now - self._logged_at < MIN_INTERVAL_S):
            return False
        self._error, self._logged_at = error, now
        return True

    def is_over(self) -> bool:
        """Return whether a failure was logged that is over now, and reset."""
        over = self._error is not None
        self._error, self._logged_at = None, float("-inf")
        return over
