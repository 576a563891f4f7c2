"""Time formats and clock corrections of metadata services."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.reclaim.signal import SKEW, ascii_line, clamp_deadline, parse_time, to_local_clock
from dra_agent.reclaim.state_file import by_clock_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_saved_time_beyond_the_range_is_kept() -> None:
    """The maximum time cannot be shifted further; it must not prevent the start of the agent."""

    class SavedTimes(msgspec.Struct, frozen=True):
        when: datetime
        others: tuple[datetime, ...] = ()

    last = datetime.max.replace(tzinfo=UTC)
    moved = by_clock_of(SavedTimes(last, (NOON,)), NOON, NOON + timedelta(hours=1))
    assert moved == SavedTimes(last, (NOON + timedelta(hours=1),))


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
def test_time_formats_of_services_are_parsed(text: str) -> None:
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
def test_a_malformed_time_or_one_without_a_zone_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError, OverflowError):
        assert parse_time(text).tzinfo is UTC


@given(st.integers(-100_000, 100_000_000).map(lambda seconds: NOON + timedelta(seconds=seconds)))
def test_a_clamped_deadline_is_neither_past_nor_too_far(deadline: datetime) -> None:
    default, limit = timedelta(seconds=120), timedelta(hours=1)
    clamped, note, is_plausible = clamp_deadline(deadline, now=NOON, default_lead=default, max_lead=limit)
    assert NOON <= clamped <= NOON + limit
    assert (clamped == deadline) == (note == "")
    assert is_plausible == (deadline <= NOON + limit)


def test_the_note_on_a_deadline_does_not_depend_on_the_local_clock() -> None:
    default, limit, announced = timedelta(seconds=120), timedelta(hours=1), NOON - timedelta(minutes=1)
    notes = set()
    for seconds in (9.2, 9.9, 10.4):
        ahead = timedelta(seconds=seconds)
        deadline, note, is_plausible = clamp_deadline(
            announced, ahead=ahead, now=NOON - timedelta(seconds=5), default_lead=default, max_lead=limit
        )
        assert deadline == NOON - timedelta(seconds=5) and is_plausible
        notes.add(note)
    assert notes == {f"the deadline {announced.isoformat()} has passed"}


def test_external_text_is_one_line_of_limited_length() -> None:
    assert ascii_line(" a\nb\x1b[0m\u202e ") == "a?b?[0m?"
    longest = ascii_line("x" * 5000)
    assert len(longest) < 500 and longest.endswith("x...") and longest == ascii_line(longest)
    fits = "x" * len(longest)
    assert ascii_line(fits) == fits != ascii_line(f"{fits}x") == longest


def test_an_implausible_clock_difference_is_ignored() -> None:
    assert to_local_clock(NOON, timedelta(days=365 * 5000)) == NOON
    assert to_local_clock(NOON, -timedelta(days=365 * 9000)) == NOON


def test_a_clock_difference_is_corrected_unless_it_is_one_second() -> None:
    assert to_local_clock(NOON, timedelta(hours=1)) == NOON - timedelta(hours=1)
    assert to_local_clock(NOON, timedelta(seconds=-90)) == NOON + timedelta(seconds=90)
    assert to_local_clock(NOON, SKEW) == NOON - SKEW
    assert to_local_clock(NOON, timedelta(seconds=1)) == to_local_clock(NOON, None) == NOON
