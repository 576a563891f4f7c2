"""Time that no clock step changes: CLOCK_BOOTTIME, and UTC times that are counted by it.

CLOCK_BOOTTIME runs from the host's boot, also while the host is suspended, and is the same for every process of one
boot (clock_gettime(2)). Durations are measured by it. Wall time is for readers outside of the
process: API objects, files, messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

STEP = timedelta(seconds=2)
"""Differences below this are not a step of the wall clock: reading two clocks takes a while."""


def boottime() -> float:
    """Seconds since the host's boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_now() -> datetime:
    """The host's wall clock, aware, in UTC; it can step."""
    return datetime.now(UTC)  # noqa: TID251 - the one place where wall time and time since boot meet


class SteadyClock:
    """UTC as the wall clock had it when this clock was made, counted on by CLOCK_BOOTTIME.

    Differences of its times are real durations. After a step of the wall clock its times differ from wall time by
    `offset`; `to_wall` and `from_wall` convert.
    """

    def __init__(self, *, elapsed: Callable[[], float] = boottime, wall: Callable[[], datetime] = wall_now) -> None:
        """`elapsed`: seconds since the boot. `wall`: the wall clock."""
        self._elapsed = elapsed
        self._wall = wall
        self.booted = wall() - timedelta(seconds=elapsed())
        """When the host booted, by this clock."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        return self.booted + timedelta(seconds=self._elapsed())

    def unix(self) -> float:
        """The present moment as Unix time of this clock, for durations."""
        return self.now().timestamp()

    @property
    def offset(self) -> timedelta:
        """By how much the wall clock is ahead of this one; zero unless it was stepped."""
        ahead = self._wall() - self.now()
        return ahead if abs(ahead) >= STEP else timedelta()

    def to_wall(self, moment: datetime) -> datetime:
        """A time of this clock as the wall clock has it."""
        return _moved(moment, self.offset)

    def wall_unix(self, moment: float | None) -> float | None:
        """Unix time of this clock as the wall clock has it."""
        return None if moment is None else moment + self.offset.total_seconds()

    def from_wall(self, moment: datetime) -> datetime:
        """A time of the wall clock by this clock."""
        return _moved(moment, -self.offset)


STEADY = SteadyClock()
"""The clock of this process."""


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
