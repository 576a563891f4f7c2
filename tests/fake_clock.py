"""A host's clocks under a test's control: time that passes, and a wall clock that is stepped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dra_agent.clock import SteadyClock


class FakeTime:
    """The host's time since its boot, and what its wall clock says."""

    def __init__(self, *, uptime_s: float = 100_000.0) -> None:
        self.uptime_s = uptime_s
        self._wall_at_boot = datetime.now(UTC) - timedelta(seconds=uptime_s)

    def pass_(self, seconds: float) -> None:
        self.uptime_s += seconds

    def step_wall(self, seconds: float) -> None:
        self._wall_at_boot += timedelta(seconds=seconds)

    def boottime(self) -> float:
        return self.uptime_s

    def wall(self) -> datetime:
        return self._wall_at_boot + timedelta(seconds=self.uptime_s)

    def clock(self) -> SteadyClock:
        """A clock as a process that starts now would make it."""
        return SteadyClock(elapsed=self.boottime, wall=self.wall)
