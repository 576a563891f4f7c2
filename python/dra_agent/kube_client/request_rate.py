"""A bound on requests per second: a defect that repeats requests costs the API server no more than a kubelet may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REQUESTS_PER_S = 50.0
BURST = 100
"""The defaults of the kubelet (`kubeAPIQPS`, `kubeAPIBurst` of its configuration)."""


class RequestRate:
    """A token bucket for all threads."""

    def __init__(
        self, per_s: float = REQUESTS_PER_S, burst: float = BURST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: float = burst
        self._refilled_at = clock()

    def reserve(self) -> float:
        """Take a token, and return the seconds until the request may be sent; 0.0 if it may be sent now."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._per_s)
            self._refilled_at = now
            self._tokens -= 1
            return max(0.0, -self._tokens / self._per_s)

    def describe(self) -> str:
        """Return the reason why a request waits."""
        return f"its turn: the agent sends at most {self._per_s:g} requests per second"
