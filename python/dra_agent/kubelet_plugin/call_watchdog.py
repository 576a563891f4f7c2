"""Answers calls at their deadline while the threads that work on them cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class CallWatchdog:
    """One thread for all calls, which sleeps until the first deadline that it knows.

    A call that ends in time does not wake it, so it is awake about once for each span of a deadline with calls.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[object, tuple[float, Callable[[], None]]] = {}
        self._wakes_at_s = float("inf")
        self._started = False

    def add(self, deadline_s: float, late: Callable[[], None]) -> object:
        """Have `late` called at `deadline_s`, in the time of time.monotonic, on a thread of its own; returns a key."""
        key = object()
        with self._changed:
            self._calls[key] = (deadline_s, late)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="call deadlines", daemon=True).start()
            elif deadline_s < self._wakes_at_s:
                self._changed.notify()
        return key

    def remove(self, key: object) -> None:
        """Forget a call that has ended; it may have been late."""
        with self._changed:
            self._calls.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                late = [(key, call) for key, (deadline_s, call) in self._calls.items() if deadline_s <= now_s]
                for key, _ in late:
                    del self._calls[key]
                if not late:
                    self._wakes_at_s = min((deadline_s for deadline_s, _ in self._calls.values()), default=float("inf"))
                    self._changed.wait(self._wakes_at_s - now_s if self._calls else None)
            for _, call in late:
                # A client that reads nothing must not delay the answers to others.
                threading.Thread(target=call, name="late call", daemon=True).start()
