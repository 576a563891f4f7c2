"""What a fake API server does wrong when a test says so."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

Action = Literal["answer", "reset", "hang", "reset-after", "late", "truncate", "stale"]
"""truncate: half of the answer, then the end. stale: what a list was a while ago, as from a cache that lags."""


@dataclass
class Fault:
    """Something that goes wrong with requests that match, `times` times (None: until it is lifted)."""

    action: Action = "answer"
    status: int = 500
    body: str | None = None
    """The whole answer; a Status object of `status` where it is none."""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """How long to hang, after which the request goes on; how late the answer is."""
    methods: frozenset[str] = frozenset()
    """Empty: all."""
    path: str = ""
    """A part of the path with its query."""
    times: int | None = 1
    when: threading.Event | None = None
    """Nothing is answered before this happens."""
    skip: int = 0
    """How many requests that match pass before it happens."""

    def matches(self, method: str, target: str) -> bool:
        return (not self.methods or method in self.methods) and self.path in target


class Faults:
    """The faults in force. Thread-safe."""

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
        """How many have not (all) happened yet."""
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
