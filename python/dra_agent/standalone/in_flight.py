"""What is being done to claims outside of the queue's lock: one thing for each at a time, and all side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable

Job = Callable[[], None]
Run = Callable[[str, Job], None]
"""Has a job done for a claim, by its uid: now, or on another thread. The job never raises."""


def run_inline(uid: str, job: Job) -> None:
    """Do it before returning."""
    job()


class InFlightClaims:
    """Which claims somebody works at; safe for threads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @property
    def under_way(self) -> frozenset[str]:
        """The claims that somebody works at now, by uid."""
        with self._lock:
            return frozenset(self._under_way)

    def is_free(self, uid: str) -> bool:
        """Whether nobody works at a claim."""
        with self._lock:
            return uid not in self._under_way

    def begin(self, uid: str, job: Job) -> None:
        """Have a job done; whoever calls has seen that the claim is free, and holds the lock of the queue."""
        with self._lock:
            self._under_way.add(uid)
        try:
            self._run(uid, lambda: self._do(uid, job))
        except BaseException:
            self._done(uid)
            raise

    def _do(self, uid: str, job: Job) -> None:
        try:
            job()
        finally:
            self._done(uid)

    def _done(self, uid: str) -> None:
        with self._lock:
            self._under_way.discard(uid)
