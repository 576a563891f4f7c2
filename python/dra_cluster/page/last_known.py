"""Values that are slow to read: read in the background on demand, and shown with their age meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra_agent.errors import AgentError

_T = TypeVar("_T")
FIRST_WAIT_S = 5.0
"""Seconds that a request waits for a value that was never read."""
WAIT_S = 1.0
"""Seconds that a request waits for a newer value before it gets the last one."""
MAX_SHARE = 0.25
"""Part of the time that is spent with reading at most, however many clients ask."""


@dataclass(frozen=True)
class LastRead(Generic[_T]):
    """What is known now."""

    value: _T | None
    """None: it was never read."""
    age_s: float | None
    """Seconds since it was read."""
    error: str | None
    """Why the last attempt failed."""
    reading_s: float | None
    """Seconds since the present attempt began; None: there is none."""


class LastKnown(Generic[_T]):
    """The last value of a function that may hang. One thread calls it, and only for a request."""

    def __init__(
        self, read: Callable[[], _T], *, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`interval_s`: the value is not read again before it is that old."""
        self._read = read
        self._interval_s = interval_s
        self._clock = clock
        self._changed = threading.Condition()
        self._value: _T | None = None
        self._read_at: float | None = None
        self._error: str | None = None
        self._started: float | None = None
        self._next = float("-inf")

    def get(self) -> LastRead[_T]:
        """Return what is known, after a short wait if a reading is due."""
        with self._changed:
            if self._started is None and self._clock() >= self._next:
                self._started = self._clock()
                threading.Thread(target=self._run, name="page-read", daemon=True).start()
            self._changed.wait_for(lambda: self._started is None, FIRST_WAIT_S if self._read_at is None else WAIT_S)
            now = self._clock()
            return LastRead(
                self._value,
                None if self._read_at is None else now - self._read_at,
                self._error,
                None if self._started is None else now - self._started,
            )

    def _run(self) -> None:
        started = self._clock()
        value, error = None, None
        try:
            value = self._read()
        except AgentError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - a defect of one view must not end the page
            error = f"internal error: {type(failure).__name__}: {failure}"
        with self._changed:
            now = self._clock()
            if error is None:
                self._value, self._read_at = value, started
            self._error, self._started = error, None
            self._next = max(started + self._interval_s, now + (now - started) * (1 / MAX_SHARE - 1))
            self._changed.notify_all()
