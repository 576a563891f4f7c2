"""Counters of errors that only grow, and begin anew when a driver is loaded: how much they have grown."""

from __future__ import annotations

_HOUR = 3600.0


class ErrorCounters:
    """One counter of each device."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._hours: dict[str, tuple[float, int]] = {}
        """When an hour began, and the errors since then."""

    def more(self, device: str, count: int) -> bool:
        """Take note of a device's counter; says whether it has grown. What it was at the first look is no news."""
        return self._growth(device, count) > 0

    def within_an_hour(self, device: str, count: int, now: float) -> int:
        """Take note of a device's counter; gives by how much it has grown in the hour that goes on."""
        began, errors = self._hours.get(device, (now, 0))
        if now - began >= _HOUR:
            began, errors = now, 0
        errors += max(0, self._growth(device, count))
        self._hours[device] = (began, errors)
        return errors

    def _growth(self, device: str, count: int) -> int:
        before = self._last.get(device, count)
        self._last[device] = count
        return count - before
