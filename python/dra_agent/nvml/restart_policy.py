"""When a library that has failed is started again: at once the first time, later with each time that it fails again."""

from __future__ import annotations

FIRST_WAIT_S = 2.0
MAX_WAIT_S = 300.0
"""Seconds between the end of a process and the start of the next; doubled with each that ends."""
HANGS = 60.0
MAX_HANGS = 3600.0
"""Seconds for which a call may be out before its process is replaced; doubled with each that was. Long, because other
GPUs are not watched meanwhile, and a call that waits in the kernel will do so in the next process too."""
FORGET_AFTER_S = 7200.0
"""Seconds without a failure after which it counts as the first one again."""


class RestartPolicy:
    """Counts the failures of one library. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._failures = 0
        self._last = 0.0

    def failed(self, now: float) -> None:
        """Take note that a process has ended, or was replaced."""
        self._failures = self._count(now) + 1
        self._last = now

    def remaining(self, now: float) -> float:
        """Give the seconds for which none is to be started yet."""
        failures = self._count(now)
        if failures < 2:
            return 0.0
        wait: float = min(FIRST_WAIT_S * 2.0 ** (failures - 2), MAX_WAIT_S)
        return max(0.0, self._last + wait - now)

    def tolerates(self, stuck: float, now: float) -> bool:
        """Tell whether a call may go on that has been out for so many seconds."""
        return stuck < min(HANGS * 2.0 ** self._count(now), MAX_HANGS)

    def _count(self, now: float) -> int:
        return self._failures if now - self._last < FORGET_AFTER_S else 0
