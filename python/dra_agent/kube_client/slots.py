"""A bound on concurrent requests: a burst of claims opens few connections and keeps no other work waiting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

MAX_REQUESTS = 8
"""Requests that run at once, and so the connections that carry them. Watches have connections of their own."""
MAX_REQUESTS_OF_A_RESOURCE = 6
"""Of one resource: a hundred claims that are read must not keep a taint from being written."""


class RequestSlots:
    """Assigns slots in the order of requests, within the bound of the resource."""

    def __init__(self, total: int = MAX_REQUESTS, of_a_resource: int = MAX_REQUESTS_OF_A_RESOURCE) -> None:
        self._total = total
        self._of_a_resource = of_a_resource
        self._running: Counter[str] = Counter()
        self._used = 0
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    async def acquire(self, resource: str) -> None:
        """Wait for a slot; the caller bounds the wait. Every acquired slot is released once."""
        # A waiting request cannot run at present, so a request that can run does not overtake it.
        if self._has_room(resource):
            self._start(resource)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (resource, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(resource)
            else:
                self._waiting.remove(entry)
            raise

    def release(self, resource: str) -> None:
        """Release a slot; the first waiting request that may run gets it."""
        self._used -= 1
        self._running[resource] -= 1
        for at, (waiting, turn) in enumerate(self._waiting):
            if self._has_room(waiting):
                del self._waiting[at]
                self._start(waiting)
                turn.set_result(None)
                return

    def describe(self) -> str:
        """Return the reason why a request waits for a slot."""
        running = ", ".join(f"{count} of {resource}" for resource, count in sorted(self._running.items()) if count)
        return f"a free connection; pending requests: {running}"

    def _has_room(self, resource: str) -> bool:
        return self._used < self._total and self._running[resource] < self._of_a_resource

    def _start(self, resource: str) -> None:
        self._used += 1
        self._running[resource] += 1
