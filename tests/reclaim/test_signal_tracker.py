"""What is told onward of what sources say, and what of it is logged."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signal_tracker import LOG_INTERVAL_S, MAX_SIGNALS, MIN_LOG_INTERVAL_S, SignalTracker
from logged import logged_by

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICE = Signal("azure", "notice", "1", "Preempt", NOW)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Signal]:
    return []


@pytest.fixture
def picture(told: list[Signal], clock: Clock) -> SignalTracker:
    return SignalTracker(["azure"], told.append, clock=clock)


def test_what_is_said_again_and_again_is_told_and_logged_once(
    picture: SignalTracker, told: list[Signal], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            picture.observed("azure", [NOTICE])
    assert told == [NOTICE] and len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 1


def test_what_is_no_longer_said_is_cleared_once(picture: SignalTracker, told: list[Signal]) -> None:
    picture.observed("azure", [NOTICE])
    picture.observed("azure", [])
    picture.observed("azure", [])
    assert [(reading.kind, reading.event) for reading in told] == [("notice", "1"), ("clear", "1")]


def test_a_failed_look_takes_nothing_back(picture: SignalTracker, told: list[Signal]) -> None:
    picture.observed("azure", [NOTICE])
    for _ in range(10):
        picture.failed("azure", "no answer")
    assert told == [NOTICE]
    (source_health,) = picture.source_health()
    assert (source_health.up, source_health.failures, source_health.why, source_health.last_success) == (
        False,
        10,
        "no answer",
        1000.0,
    )


def test_what_an_earlier_run_was_told_is_cleared_by_the_first_good_look(told: list[Signal], clock: Clock) -> None:
    picture = SignalTracker(["azure"], told.append, known=[NOTICE], clock=clock)
    picture.failed("azure", "no answer")
    assert told == []
    picture.observed("azure", [])
    assert [reading.kind for reading in told] == ["clear"]


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({"deadline": NOW + timedelta(seconds=1)}, False),
        ({"deadline": NOW - timedelta(seconds=60)}, True),
        ({"deadline": None}, True),
        ({"kind": "hint"}, True),
        ({"what": "Terminate"}, True),
    ],
)
def test_a_change_is_told_unless_it_is_a_clocks(
    picture: SignalTracker, told: list[Signal], change: dict[str, object], is_told: bool
) -> None:
    picture.observed("azure", [NOTICE])
    changed = msgspec.structs.replace(NOTICE, **change)
    picture.observed("azure", [changed])
    assert told == [NOTICE, changed][: 1 + is_told]


def test_a_deadline_that_is_reckoned_from_each_look_is_told_once(picture: SignalTracker, told: list[Signal]) -> None:
    for seconds in range(0, 600, 60):
        late = msgspec.structs.replace(NOTICE, deadline=NOW + timedelta(seconds=seconds), deadline_note="it has passed")
        picture.observed("azure", [late])
    assert len(told) == 1


def test_a_source_that_says_too_much_keeps_its_notices(picture: SignalTracker, told: list[Signal]) -> None:
    hints = [Signal("azure", "hint", str(number), "Freeze") for number in range(500)]
    picture.observed("azure", [*hints, NOTICE])
    assert len(told) <= MAX_SIGNALS and NOTICE in told


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_words_about_one_event_the_safer_one_counts(
    picture: SignalTracker, told: list[Signal], turned: bool
) -> None:
    hint = msgspec.structs.replace(NOTICE, kind="hint", deadline=NOW - timedelta(seconds=9))
    later = msgspec.structs.replace(NOTICE, deadline=NOW + timedelta(seconds=60))
    never = msgspec.structs.replace(NOTICE, deadline=None)
    words = [later, NOTICE, hint, never]
    picture.observed("azure", words[::-1] if turned else words)
    assert told == [NOTICE]


def test_a_silent_source_is_mentioned_now_and_then(
    picture: SignalTracker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3600):
        picture.failed("azure", "no answer")
        clock.now += 1
    assert len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 3600 / LOG_INTERVAL_S


def test_a_source_that_comes_and_goes_does_not_fill_the_log(
    picture: SignalTracker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(600):
            picture.failed("azure", "503")
            picture.observed("azure", [])
            clock.now += 2
    # One line when it goes and one when it comes back, at most once a minute.
    assert len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 2 * 1200 / MIN_LOG_INTERVAL_S
