"""Answers calls at their deadline while the threads that work on them cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dra_agent.threads import NoThreadError, start_thread

log = logging.getLogger(__name__)


class CallWatchdog:
    """One thread for all calls, which sleeps until the first deadline that it knows.

    A call that ends in time does not wake it, so it is awake about once for each span of a deadline with calls. It ends
    when it wakes without calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[object, tuple[float, Callable[[], None]]] = {}
        self._wakes_at_s = float("inf")
        self._running = False

    def add(self, deadline_s: float, late: Callable[[], None]) -> object:
        """Have `late` called at `deadline_s`, in the time of time.monotonic, on a separate thread; returns a key.

        Raises NoThreadError; nothing is called then.
        """
        key = object()
        with self._lock:
            if not self._running:
                start_thread("call deadlines", self._run)
                self._running = True
            elif deadline_s < self._wakes_at_s:
                self._changed.notify()
            self._calls[key] = (deadline_s, late)
        return key

    def remove(self, key: object) -> bool:
        """Forget a call that has ended; False if it is late: then only `late` may respond."""
        with self._lock:
            return self._calls.pop(key, None) is not None

    def _run(self) -> None:
        while True:
            with self._lock:
                now_s = time.monotonic()
                late = [(key, call) for key, (deadline_s, call) in self._calls.items() if deadline_s <= now_s]
                for key, _ in late:
                    del self._calls[key]
                if not late:
                    if not self._calls:
                        self._running = False
                        return
                    self._wakes_at_s = min(deadline_s for deadline_s, _ in self._calls.values())
                    self._changed.wait(self._wakes_at_s - now_s)
            for _, call in late:
                # A response that blocks must not delay the others.
                try:
                    start_thread("late call", _respond, call)
                except NoThreadError:
                    _respond(call)


def _respond(late: Callable[[], None]) -> None:
    try:
        late()
    except Exception:
        log.exception("a late call has no response")
