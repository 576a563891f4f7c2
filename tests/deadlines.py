"""Deadlines for calls that do not test timing, and a clock that the test advances."""

from __future__ import annotations

import time

import pytest

import dra_agent.deadline
from dra_agent.deadline import Deadline


def a_minute() -> Deadline:
    """Return a deadline longer than any call and shorter than the timeout of a test."""
    return Deadline.of(60)


class RunningClock:
    """The clock of every `Deadline` of this process: it runs, and a test can advance it. For tests with waits."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def pass_(self, seconds: float) -> None:
        self._ahead_s += seconds


class DeadlineClock:
    """The clock of every `Deadline` of this process. It stands still until a test advances it.

    Only for tests without waits: a wait until a deadline would never end.
    """

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def pass_(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def deadline_clock(monkeypatch: pytest.MonkeyPatch) -> DeadlineClock:
    """Replace the clock of deadlines for one test."""
    clock = DeadlineClock()
    monkeypatch.setattr(dra_agent.deadline, "time", clock)
    return clock


@pytest.fixture
def running_clock(monkeypatch: pytest.MonkeyPatch) -> RunningClock:
    """Replace the clock of deadlines for one test by one that runs."""
    clock = RunningClock()
    monkeypatch.setattr(dra_agent.deadline, "time", clock)
    return clock
