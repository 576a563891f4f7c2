"""Faults that a test injects into the fake API server."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

Action = Literal["answer", "reset", "hang", "reset-after", "late", "truncate", "stale"]
"""truncate: half of the response, then the end. stale: an older list, as from a lagging cache."""


@dataclass
class Fault:
    """A failure of the next `times` matching requests (None: until it is removed)."""

    action: Action = "answer"
    status: int = 500
    body: str | None = None
    """The complete body; a Status object of `status` if None."""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds to hang before the request continues; delay of the response."""
    methods: frozenset[str] = frozenset()
    """Empty: all."""
    path: str = ""
    """A substring of the path with its query."""
    times: int | None = 1
    when: threading.Event | None = None
    """The response waits for this event."""
    skip: int = 0
    """Number of matching requests that pass before the first failure."""

    def matches(self, method: str, target: str) -> bool:
        return (not self.methods or method in self.methods) and self.path in target


class Faults:
    """The active faults. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def lift(self, fault: Fault) -> None:
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    @property
    def pending(self) -> int:
        """Return the number of faults that are not used up."""
        with self._lock:
            return len(self._faults)

    def next(self, method: str, target: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.matches(method, target):
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    if fault.times is not None:
                        fault.times -= 1
                        if fault.times <= 0:
                            self._faults.remove(fault)
                    return fault
        return None
