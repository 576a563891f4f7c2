"""Times of metadata services."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.reclaim.signal import clamp_deadline, parse_time, to_local_clock
from dra_agent.reclaim.state_file import by_clock_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_time_on_disk_that_no_clock_reaches_stays_what_it_is() -> None:
    """The last that there is, moved further: the file is not worth an agent that does not start."""

    class Kept(msgspec.Struct, frozen=True):
        when: datetime
        others: tuple[datetime, ...] = ()

    last = datetime.max.replace(tzinfo=UTC)
    moved = by_clock_of(Kept(last, (NOON,)), NOON, NOON + timedelta(hours=1))
    assert moved == Kept(last, (NOON + timedelta(hours=1),))


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00:00z",
        "2026-01-31 12:00:00Z",
        "2026-01-31T13:00:00+01:00",
        "2026-01-31T12:00:00.000000000Z",
        "Sat, 31 Jan 2026 12:00:00 GMT",
        "31 Jan 2026 12:00:00 GMT",
        "  31 Jan 2026 12:00:00 GMT\n",
    ],
)
def test_the_forms_that_services_write(text: str) -> None:
    assert parse_time(text) == NOON


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-13-31T12:00:00Z",
        "31 Jan 2026 12:00:00",
        "Sat, 31 Jan 2026 12:00:00",
        "1769860800",
        "٢٠٢٦-01-31T12:00:00Z",
        "9" * 1000,
    ],
)
def test_what_is_no_time_of_a_known_zone_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError, OverflowError):
        assert parse_time(text).tzinfo is UTC


@given(st.integers(-100_000, 100_000_000).map(lambda seconds: NOON + timedelta(seconds=seconds)))
def test_a_deadline_to_go_by_is_never_past_and_never_beyond_belief(deadline: datetime) -> None:
    usual, most = timedelta(seconds=120), timedelta(hours=1)
    believed, doubt = clamp_deadline(deadline, now=NOON, usual=usual, most=most)
    assert NOON <= believed <= NOON + most
    assert (believed == deadline) == (doubt == "")


def test_what_is_said_of_a_deadline_does_not_hang_on_our_clock() -> None:
    usual, most, announced = timedelta(seconds=120), timedelta(hours=1), NOON - timedelta(minutes=1)
    said = set()
    for seconds in (9.2, 9.9, 10.4):
        ahead = timedelta(seconds=seconds)
        deadline, doubt = clamp_deadline(
            announced, ahead=ahead, now=NOON - timedelta(seconds=5), usual=usual, most=most
        )
        assert deadline == NOON - timedelta(seconds=5)
        said.add(doubt)
    assert said == {f"the deadline {announced.isoformat()} has passed"}


def test_a_clock_beyond_belief_is_not_gone_by() -> None:
    assert to_local_clock(NOON, timedelta(days=365 * 5000)) == NOON
    assert to_local_clock(NOON, -timedelta(days=365 * 9000)) == NOON


def test_a_clock_that_differs_is_set_right_and_a_second_is_no_difference() -> None:
    assert to_local_clock(NOON, timedelta(hours=1)) == NOON - timedelta(hours=1)
    assert to_local_clock(NOON, timedelta(seconds=-90)) == NOON + timedelta(seconds=90)
    assert to_local_clock(NOON, timedelta(seconds=1)) == to_local_clock(NOON, None) == NOON
