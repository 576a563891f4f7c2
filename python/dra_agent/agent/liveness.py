"""Whether the agent lives: the event loop turns, and no work takes longer than it ever should.

It judges; notify.py (the watchdog) and http.py (/healthz) tell others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BEAT_INTERVAL_S = 1.0
"""Seconds between two beats of the loop."""
STALL_TIMEOUT_S = 15.0
"""Seconds without a beat after which the loop counts as stuck."""


class LivenessMonitor:
    """Signs of life from the event loop and from worker threads; safe to use from any of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._beat = clock()
        self._work: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._checks: list[_Check] = []

    def heartbeat(self) -> None:
        """Note that the event loop turns."""
        self._beat = self._clock()

    def watch(self, check: Callable[[], str], grace_s: float) -> None:
        """Count what `check` returns as an illness once it has returned a reason for `grace_s` seconds.

        For what only a new process (or pod) repairs. `check` is called with every `ills`, and must not wait.
        """
        self._checks.append(_Check(check, grace_s))

    @contextmanager
    def working(self, what: str, at_most: float) -> Iterator[None]:
        """Do work that takes less than `at_most` seconds even when libraries hang and disks are slow."""
        with self._lock:
            number = self._next
            self._next += 1
            self._work[number] = (what, self._clock() + at_most)
        try:
            yield
        finally:
            with self._lock:
                del self._work[number]

    def busy(self) -> list[str]:
        """Say what is being worked on."""
        with self._lock:
            return [what for what, _ in self._work.values()]

    def failures(self) -> list[str]:
        """Say what is stuck; nothing if all is well."""
        now = self._clock()
        with self._lock:
            late = [f"{what} is {now - end:.0f} s overdue" for what, end in self._work.values() if now > end]
        if now - self._beat > STALL_TIMEOUT_S:
            late.insert(0, f"the event loop has been stuck for {now - self._beat:.0f} s")
        return late + [reason for check in self._checks if (reason := check.failing(now))]


class _Check:
    def __init__(self, check: Callable[[], str], grace_s: float) -> None:
        self._check = check
        self._grace_s = grace_s
        self._since: float | None = None

    def failing(self, now: float) -> str:
        reason = self._check()
        if not reason:
            self._since = None
            return ""
        if self._since is None:
            self._since = now
        return reason if now - self._since >= self._grace_s else ""
