"""A bound on concurrent requests: a burst of claims opens few connections and keeps no other work waiting."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque

MAX_REQUESTS = 8
"""Requests that run at once, and so the connections that carry them. Watches have separate connections."""
MAX_REQUESTS_OF_A_RESOURCE = 6
"""Of one resource: a hundred claims that are read must not keep a taint from being written."""


class RequestSlots:
    """Assigns slots in the order of requests, within the bound of the resource.

    Requests on the event loop wait for a slot; requests on other threads only try.
    """

    def __init__(self, total: int = MAX_REQUESTS, of_a_resource: int = MAX_REQUESTS_OF_A_RESOURCE) -> None:
        self._total = total
        self._of_a_resource = of_a_resource
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._used = 0
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    async def acquire(self, resource: str) -> None:
        """Wait for a slot; the caller bounds the wait. Every acquired slot is released once."""
        with self._lock:
            if self._has_room(resource):
                self._start(resource)
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (resource, turn)
            self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                waits = entry in self._waiting
                if waits:
                    self._waiting.remove(entry)
            # One that was granted from another thread is released where the grant arrives.
            if not waits and not turn.cancelled():
                self.release(resource)
            raise

    def try_acquire(self, resource: str) -> bool:
        """Take a slot on any thread, if one is free; it is released once."""
        # A waiting request cannot run at present, so a request that can run does not overtake it.
        with self._lock:
            if not self._has_room(resource):
                return False
            self._start(resource)
            return True

    def release(self, resource: str) -> None:
        """Release a slot, on any thread; the first waiting request that may run gets it."""
        while True:
            with self._lock:
                self._used -= 1
                self._running[resource] -= 1
                granted = self._next()
            if granted is None:
                return
            resource, turn = granted
            try:
                turn.get_loop().call_soon_threadsafe(self._grant, resource, turn)
            except RuntimeError:  # its loop is closed: the request has ended
                continue
            return

    def _next(self) -> tuple[str, asyncio.Future[None]] | None:
        for at, entry in enumerate(self._waiting):
            if self._has_room(entry[0]):
                del self._waiting[at]
                self._start(entry[0])
                return entry
        return None

    def _grant(self, resource: str, turn: asyncio.Future[None]) -> None:
        if turn.cancelled():
            self.release(resource)
        else:
            turn.set_result(None)

    def describe(self) -> str:
        """Return the reason why a request waits for a slot."""
        with self._lock:
            counts = sorted(self._running.items())
        running = ", ".join(f"{count} of {resource}" for resource, count in counts if count)
        return f"a free connection; pending requests: {running}"

    def _has_room(self, resource: str) -> bool:
        return self._used < self._total and self._running[resource] < self._of_a_resource

    def _start(self, resource: str) -> None:
        self._used += 1
        self._running[resource] += 1
