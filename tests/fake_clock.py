"""The clocks of a host under control of a test: elapsed time, and a wall clock that can be stepped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dra_agent.clock import SteadyClock


class FakeTime:
    """The time since boot and the wall clock of a host."""

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
        """Return a clock as a process that starts now creates it."""
        return SteadyClock(elapsed=self.boottime, wall=self.wall)
