"""When to try again what failed: after 1 s, then twice as long each time, at most a minute."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

FIRST = 1.0
LONGEST = 60.0


@dataclass(slots=True)
class _Wait:
    until: float
    last: float


class Backoff:
    """Waiting times by key, on an injected clock (seconds, monotonic)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def failed(self, key: str) -> float:
        """Note a failure; the result is the seconds until the next try."""
        known = self._waits.get(key)
        wait = FIRST if known is None else min(known.last * 2, LONGEST)
        self._waits[key] = _Wait(self._clock() + wait, wait)
        return wait

    def done(self, key: str) -> None:
        """Forget the failures of a key."""
        self._waits.pop(key, None)

    def due(self, key: str) -> bool:
        """Whether a try is worth it now."""
        known = self._waits.get(key)
        return known is None or self._clock() >= known.until

    def next_in(self, besides: Collection[str] = ()) -> float | None:
        """Seconds until the earliest try that is waiting, or None; `besides` are being tried now."""
        waits = [wait.until for key, wait in self._waits.items() if key not in besides]
        return max(0.0, min(waits) - self._clock()) if waits else None
