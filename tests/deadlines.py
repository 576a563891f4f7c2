"""Deadlines for calls that are not about time, and those that pass when a test says so."""

from __future__ import annotations

import pytest

import dra_agent.deadline
from dra_agent.deadline import Deadline


def a_minute() -> Deadline:
    """More than any call takes, and less than a test may."""
    return Deadline.of(60)


class DeadlineClock:
    """What every `Deadline` of this process takes for the time. It stands still until a test lets time pass.

    For tests in which nobody waits: who waits until a deadline would do so for ever.
    """

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def pass_(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def deadline_clock(monkeypatch: pytest.MonkeyPatch) -> DeadlineClock:
    """Set the deadlines' clock apart from the machine's, for one test."""
    clock = DeadlineClock()
    monkeypatch.setattr(dra_agent.deadline, "time", clock)
    return clock
