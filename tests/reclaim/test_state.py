"""The merged reclaim state: properties for any order of events, and special cases."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import STICKY_GRACE, ReclaimState, apply, dismiss, expire, keep_sources, next_expiry

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def notice(source: str = "aws.spot", event: str = "e", seconds: float | None = 120, sticky: bool = False) -> Signal:
    return Signal(source, "notice", event, "w", None if seconds is None else after(seconds), sticky=sticky)


def hint(source: str = "aws.rebalance", event: str = "h") -> Signal:
    return Signal(source, "hint", event, "w")


def clear(original: Signal) -> Signal:
    return Signal(original.source, "clear", original.event, original.description)


FRESH = ReclaimState("boot")

source_names = st.sampled_from(["a", "b", "c"])
events = st.sampled_from(["1", "2"])
deadlines = st.none() | st.integers(-100, 1000).map(after)
signal_strategy = st.builds(
    Signal,
    source_names,
    st.sampled_from(["hint", "notice", "clear"]),
    events,
    st.just("w"),
    deadlines,
    sticky=st.booleans(),
)
steps_strategy = st.lists(st.tuples(signal_strategy, st.integers(0, 50)), max_size=30)


def run_steps(steps_strategy: list[tuple[Signal, int]]) -> list[tuple[ReclaimState, datetime]]:
    state, now, states = FRESH, T0, [(FRESH, T0)]
    for signal, seconds in steps_strategy:
        now += timedelta(seconds=seconds)
        state = expire(apply(state, signal, now), now)
        states.append((state, now))
    return states


@given(steps_strategy)
def test_a_repeated_signal_changes_nothing(steps_strategy: list[tuple[Signal, int]]) -> None:
    state, now = run_steps(steps_strategy)[-1]
    for signal, _ in steps_strategy[-1:]:
        assert apply(state, signal, now) == state


@given(steps_strategy)
def test_the_phase_is_that_of_the_most_severe_active_signal(steps_strategy: list[tuple[Signal, int]]) -> None:
    for state, _ in run_steps(steps_strategy):
        kinds = [active.signal.kind for active in state.active]
        assert (state.phase == "notice") == ("notice" in kinds) == (state.noticed is not None)
        assert (state.phase == "hint") == ("hint" in kinds and "notice" not in kinds)
        assert "clear" not in kinds


@given(steps_strategy)
def test_the_deadline_is_the_earliest_of_active_notices(steps_strategy: list[tuple[Signal, int]]) -> None:
    deadlines_by_event: dict[tuple[str, str], list[datetime]] = {}
    state, now = FRESH, T0
    for signal, seconds in steps_strategy:
        now += timedelta(seconds=seconds)
        state = expire(apply(state, signal, now), now)
        active_events = {
            (active.signal.source, active.signal.event) for active in state.active if active.signal.kind == "notice"
        }
        key = (signal.source, signal.event)
        if signal.kind == "notice" and signal.deadline is not None:
            deadlines_by_event.setdefault(key, []).append(signal.deadline)
        deadlines_by_event = {
            event_key: times for event_key, times in deadlines_by_event.items() if event_key in active_events
        }
        assert state.deadline == min((time for times in deadlines_by_event.values() for time in times), default=None)


@given(steps_strategy)
def test_a_notice_keeps_its_start_time(steps_strategy: list[tuple[Signal, int]]) -> None:
    states = run_steps(steps_strategy)
    for (before, _), (after_, now) in itertools.pairwise(states):
        if before.noticed is not None and after_.noticed is not None:
            assert before.noticed == after_.noticed
        elif after_.noticed is not None:
            assert after_.noticed == now


@given(steps_strategy)
def test_clearing_all_signals_ends_the_reclaim(steps_strategy: list[tuple[Signal, int]]) -> None:
    state, now = run_steps(steps_strategy)[-1]
    initial_phase = state.phase
    for active in state.active:
        state = apply(state, clear(active.signal), now)
    assert all(active.silent_since is not None for active in state.active)  # only sticky notices remain
    far = now + timedelta(days=1)
    while (expiry := next_expiry(state)) is not None:
        assert expiry <= far
        state = expire(state, expiry)
    assert state.active == () and state.phase == ("none" if initial_phase == "none" else "cancelled")


@given(st.permutations([notice("a"), notice("b", seconds=60), hint("c"), notice("d", seconds=None)]))
def test_the_order_of_sources_does_not_matter(order: list[Signal]) -> None:
    state = FRESH
    for signal in order:
        state = apply(state, signal, T0)
    assert state.phase == "notice" and state.deadline == after(60)
    assert state.cause is not None and state.cause.source == "b"


@given(steps_strategy)
def test_the_state_survives_encoding(steps_strategy: list[tuple[Signal, int]]) -> None:
    state, _ = run_steps(steps_strategy)[-1]
    assert msgspec.json.decode(msgspec.json.encode(state), type=ReclaimState) == state


def test_a_notice_overrides_a_hint_of_the_same_event() -> None:
    event = Signal("azure", "hint", "1", "Reboot", after(600))
    state = apply(FRESH, event, T0)
    assert state.phase == "hint" and state.deadline is None
    state = apply(state, msgspec.structs.replace(event, kind="notice"), T0)
    assert state.phase == "notice" and state.deadline == after(600)
    assert apply(state, event, T0).phase == "notice"
    assert apply(state, clear(event), T0).phase == "cancelled"


def test_silence_does_not_end_a_sticky_notice() -> None:
    signal = notice(sticky=True)
    state = apply(apply(FRESH, signal, T0), clear(signal), after(10))
    assert state.phase == "notice" and next_expiry(state) == after(120) + STICKY_GRACE
    assert expire(state, after(179)).phase == "notice"
    assert expire(state, after(181)).phase == "cancelled"
    # The source reports it again before that: it is the same notice.
    repeated = apply(state, signal, after(20))
    assert next_expiry(repeated) is None and repeated.noticed == T0


def test_a_sticky_notice_that_is_still_reported_never_expires() -> None:
    state = apply(FRESH, notice(sticky=True), T0)
    assert expire(state, after(100_000)) == state


def test_a_dismissed_notice_stays_dismissed_until_it_returns() -> None:
    signal = notice(sticky=True)
    state = dismiss(apply(FRESH, signal, T0), after(1))
    assert state.phase == "cancelled"
    assert apply(state, signal, after(2)) == state
    assert apply(state, notice(event="other"), after(2)).phase == "notice"
    cleared = apply(state, clear(signal), after(3))
    assert apply(cleared, signal, after(4)).phase == "notice"


def test_a_notice_of_a_removed_source_is_dropped() -> None:
    state = apply(apply(FRESH, notice("aws.spot"), T0), notice("file"), T0)
    assert [active.signal.source for active in keep_sources(state, frozenset({"file"}), T0).active] == ["file"]
    assert keep_sources(state, frozenset(), T0).phase == "cancelled"
