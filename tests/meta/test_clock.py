"""Time that no step of the wall clock changes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dra_agent.clock import STEADY, boottime
from fake_clock import FakeTime

EIGHT_HOURS_S = 8 * 3600.0
ROUNDING_S = 1e-5
"""By which times of whole microseconds differ from the clock's nanoseconds."""


@pytest.mark.parametrize("step", [-EIGHT_HOURS_S, EIGHT_HOURS_S])
def test_a_step_of_the_wall_clock_is_no_time(step: float) -> None:
    time = FakeTime()
    clock = time.clock()
    before = clock.now()
    time.step_wall(step)
    time.pass_(300.0)
    assert clock.now() - before == timedelta(seconds=300)
    assert abs(clock.to_wall(clock.now()) - time.wall()) < timedelta(milliseconds=1)
    assert abs(clock.from_wall(time.wall()) - clock.now()) < timedelta(milliseconds=1)


def test_without_a_step_both_are_the_same() -> None:
    time = FakeTime()
    clock = time.clock()
    time.pass_(1e6)
    time.step_wall(1.0)  # less than what counts as a step
    assert clock.to_wall(clock.now()) == clock.now()


def test_it_is_the_time_since_the_boot_suspended_time_included() -> None:
    import time

    monotonic = time.clock_gettime(time.CLOCK_MONOTONIC)
    before = boottime()
    since_boot = (STEADY.now() - STEADY.booted).total_seconds()
    after = boottime()
    assert before >= monotonic, "only this one counts the time in suspension"
    assert before - ROUNDING_S <= since_boot <= after + ROUNDING_S


def test_a_time_at_the_end_of_the_calendar_stays() -> None:
    from datetime import UTC, datetime

    time = FakeTime()
    clock = time.clock()
    time.step_wall(EIGHT_HOURS_S)
    last = datetime.max.replace(tzinfo=UTC)
    assert clock.to_wall(last) == last
