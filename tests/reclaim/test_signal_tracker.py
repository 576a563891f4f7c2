"""Deduplication and logging of the signals of sources."""

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
def emitted() -> list[Signal]:
    return []


@pytest.fixture
def tracker(emitted: list[Signal], clock: Clock) -> SignalTracker:
    return SignalTracker(["azure"], emitted.append, clock=clock)


def test_a_repeated_signal_is_emitted_and_logged_once(
    tracker: SignalTracker, emitted: list[Signal], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            tracker.observed("azure", [NOTICE])
    assert emitted == [NOTICE] and len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 1


def test_a_missing_signal_is_cleared_once(tracker: SignalTracker, emitted: list[Signal]) -> None:
    tracker.observed("azure", [NOTICE])
    tracker.observed("azure", [])
    tracker.observed("azure", [])
    assert [(signal.kind, signal.event) for signal in emitted] == [("notice", "1"), ("clear", "1")]


def test_a_failed_poll_clears_nothing(tracker: SignalTracker, emitted: list[Signal]) -> None:
    tracker.observed("azure", [NOTICE])
    for _ in range(10):
        tracker.failed("azure", "no answer")
    assert emitted == [NOTICE]
    (health,) = tracker.source_health()
    assert (health.up, health.failures, health.why, health.last_success) == (False, 10, "no answer", 1000.0)
    tracker.observed("azure", [NOTICE])
    (health,) = tracker.source_health()
    assert (health.up, health.why, health.signals) == (True, "", 1)


def test_a_signal_of_an_earlier_run_is_cleared_by_the_first_poll(emitted: list[Signal], clock: Clock) -> None:
    tracker = SignalTracker(["azure"], emitted.append, known=[NOTICE], clock=clock)
    tracker.failed("azure", "no answer")
    assert emitted == []
    tracker.observed("azure", [])
    assert [signal.kind for signal in emitted] == ["clear"]


@pytest.mark.parametrize(
    ("change", "is_emitted"),
    [
        ({"deadline": NOW + timedelta(seconds=1)}, False),
        ({"deadline": NOW - timedelta(seconds=60)}, True),
        ({"deadline": None}, True),
        ({"kind": "hint"}, True),
        ({"description": "Terminate"}, True),
    ],
)
def test_a_change_is_emitted_unless_the_clock_explains_it(
    tracker: SignalTracker, emitted: list[Signal], change: dict[str, object], is_emitted: bool
) -> None:
    tracker.observed("azure", [NOTICE])
    changed = msgspec.structs.replace(NOTICE, **change)
    tracker.observed("azure", [changed])
    assert emitted == [NOTICE, changed][: 1 + is_emitted]


def test_a_deadline_that_moves_with_each_poll_is_emitted_once(tracker: SignalTracker, emitted: list[Signal]) -> None:
    for seconds in range(0, 600, 60):
        late = msgspec.structs.replace(NOTICE, deadline=NOW + timedelta(seconds=seconds), deadline_note="it has passed")
        tracker.observed("azure", [late])
    assert len(emitted) == 1


def test_a_source_with_too_many_signals_keeps_its_notices(tracker: SignalTracker, emitted: list[Signal]) -> None:
    hints = [Signal("azure", "hint", str(number), "Freeze") for number in range(500)]
    tracker.observed("azure", [*hints, NOTICE])
    assert len(emitted) <= MAX_SIGNALS and NOTICE in emitted


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_two_signals_for_one_event_the_safer_one_counts(
    tracker: SignalTracker, emitted: list[Signal], is_reversed: bool
) -> None:
    hint = msgspec.structs.replace(NOTICE, kind="hint", deadline=NOW - timedelta(seconds=9))
    later = msgspec.structs.replace(NOTICE, deadline=NOW + timedelta(seconds=60))
    never = msgspec.structs.replace(NOTICE, deadline=None)
    signals = [later, NOTICE, hint, never]
    tracker.observed("azure", signals[::-1] if is_reversed else signals)
    assert emitted == [NOTICE]


def test_a_failing_source_is_logged_periodically(
    tracker: SignalTracker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3600):
        tracker.failed("azure", "no answer")
        clock.now += 1
    assert len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 3600 / LOG_INTERVAL_S


def test_a_flapping_source_does_not_fill_the_log(
    tracker: SignalTracker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(600):
            tracker.failed("azure", "503")
            tracker.observed("azure", [])
            clock.now += 2
    # One line per failure and one per recovery, at most once a minute.
    assert len(logged_by(caplog, "dra_agent.reclaim.signal_tracker")) == 2 * 1200 / MIN_LOG_INTERVAL_S
