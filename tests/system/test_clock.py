"""Time that steps of the wall clock do not change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dra_agent.clock import STEADY, boottime
from fake_clock import FakeTime

EIGHT_HOURS_S = 8 * 3600.0
ROUNDING_S = 1e-5
"""Rounding of times in whole microseconds compared with the clock's nanoseconds."""


@pytest.mark.parametrize("step", [-EIGHT_HOURS_S, EIGHT_HOURS_S])
def test_a_step_of_the_wall_clock_is_not_elapsed_time(step: float) -> None:
    time = FakeTime()
    clock = time.clock()
    before = clock.now()
    time.step_wall(step)
    time.pass_(300.0)
    assert clock.now() - before == timedelta(seconds=300)
    assert abs(clock.to_wall(clock.now()) - time.wall()) < timedelta(milliseconds=1)
    assert abs(clock.from_wall(time.wall()) - clock.now()) < timedelta(milliseconds=1)


def test_without_a_step_both_clocks_agree() -> None:
    time = FakeTime()
    clock = time.clock()
    time.pass_(1e6)
    time.step_wall(1.0)  # smaller than a step
    assert clock.to_wall(clock.now()) == clock.now()


def test_the_clock_counts_suspended_time_since_boot() -> None:
    import time

    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    read = boottime()
    since_boot = (STEADY.now() - STEADY.booted).total_seconds()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= read <= after, "only CLOCK_BOOTTIME counts suspended time, and no step of the wall clock"
    assert before - ROUNDING_S <= since_boot <= after + ROUNDING_S


def test_the_latest_time_of_the_calendar_is_unchanged() -> None:
    from datetime import UTC, datetime

    time = FakeTime()
    clock = time.clock()
    time.step_wall(EIGHT_HOURS_S)
    last = datetime.max.replace(tzinfo=UTC)
    assert clock.to_wall(last) == last
