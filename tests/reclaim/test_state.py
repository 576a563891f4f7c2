"""The merged state: what holds for every order of events, and the cases that people ask about."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.state import GRACE_S, ReclaimState, apply, dismiss, expire, keep_sources, next_expiry

T0 = datetime(2026, 1, 31, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def notice(source: str = "aws.spot", event: str = "e", seconds: float | None = 120, lasting: bool = False) -> Signal:
    return Signal(source, "notice", event, "w", None if seconds is None else after(seconds), sticky=lasting)


def hint(source: str = "aws.rebalance", event: str = "h") -> Signal:
    return Signal(source, "hint", event, "w")


def clear(of: Signal) -> Signal:
    return Signal(of.source, "clear", of.event, of.what)


FRESH = ReclaimState("boot")

sources = st.sampled_from(["a", "b", "c"])
events = st.sampled_from(["1", "2"])
deadlines = st.none() | st.integers(-100, 1000).map(after)
readings = st.builds(
    Signal,
    sources,
    st.sampled_from(["hint", "notice", "clear"]),
    events,
    st.just("w"),
    deadlines,
    sticky=st.booleans(),
)
steps = st.lists(st.tuples(readings, st.integers(0, 50)), max_size=30)


def play(steps: list[tuple[Signal, int]]) -> list[tuple[ReclaimState, datetime]]:
    state, now, states = FRESH, T0, [(FRESH, T0)]
    for reading, seconds in steps:
        now += timedelta(seconds=seconds)
        state = expire(apply(state, reading, now), now)
        states.append((state, now))
    return states


@given(steps)
def test_a_reading_that_is_repeated_changes_nothing(steps: list[tuple[Signal, int]]) -> None:
    state, now = play(steps)[-1]
    for reading, _ in steps[-1:]:
        assert apply(state, reading, now) == state


@given(steps)
def test_the_phase_is_that_of_the_worst_that_holds(steps: list[tuple[Signal, int]]) -> None:
    for state, _ in play(steps):
        kinds = [held.signal.kind for held in state.active]
        assert (state.phase == "notice") == ("notice" in kinds) == (state.noticed is not None)
        assert (state.phase == "hint") == ("hint" in kinds and "notice" not in kinds)
        assert "clear" not in kinds


@given(steps)
def test_the_deadline_is_the_earliest_that_was_told_for_what_holds(steps: list[tuple[Signal, int]]) -> None:
    told: dict[tuple[str, str], list[datetime]] = {}
    state, now = FRESH, T0
    for reading, seconds in steps:
        now += timedelta(seconds=seconds)
        state = expire(apply(state, reading, now), now)
        holds = {(h.signal.source, h.signal.event) for h in state.active if h.signal.kind == "notice"}
        key = (reading.source, reading.event)
        if reading.kind == "notice" and reading.deadline is not None:
            told.setdefault(key, []).append(reading.deadline)
        told = {known: times for known, times in told.items() if known in holds}
        assert state.deadline == min((time for times in told.values() for time in times), default=None)


@given(steps)
def test_a_notice_keeps_the_moment_at_which_it_began(steps: list[tuple[Signal, int]]) -> None:
    states = play(steps)
    for (before, _), (after_, now) in itertools.pairwise(states):
        if before.noticed is not None and after_.noticed is not None:
            assert before.noticed == after_.noticed
        elif after_.noticed is not None:
            assert after_.noticed == now


@given(steps)
def test_clearing_everything_ends_it(steps: list[tuple[Signal, int]]) -> None:
    state, now = play(steps)[-1]
    began = state.phase
    for held in state.active:
        state = apply(state, clear(held.signal), now)
    assert all(held.silent_since is not None for held in state.active)  # only what cannot be taken back is left
    far = now + timedelta(days=1)
    while (expiry := next_expiry(state)) is not None:
        assert expiry <= far
        state = expire(state, expiry)
    assert state.active == () and state.phase == ("none" if began == "none" else "cancelled")


@given(st.permutations([notice("a"), notice("b", seconds=60), hint("c"), notice("d", seconds=None)]))
def test_sources_may_speak_in_any_order(order: list[Signal]) -> None:
    state = FRESH
    for reading in order:
        state = apply(state, reading, T0)
    assert state.phase == "notice" and state.deadline == after(60)
    assert state.cause is not None and state.cause.source == "b"


@given(steps)
def test_what_is_kept_is_what_was_known(steps: list[tuple[Signal, int]]) -> None:
    state, _ = play(steps)[-1]
    assert msgspec.json.decode(msgspec.json.encode(state), type=ReclaimState) == state


def test_a_notice_beats_a_hint_and_does_not_become_one_again() -> None:
    event = Signal("azure", "hint", "1", "Reboot", after(600))
    state = apply(FRESH, event, T0)
    assert state.phase == "hint" and state.deadline is None
    state = apply(state, msgspec.structs.replace(event, kind="notice"), T0)
    assert state.phase == "notice" and state.deadline == after(600)
    assert apply(state, event, T0).phase == "notice"
    assert apply(state, clear(event), T0).phase == "cancelled"


def test_silence_does_not_end_what_cannot_be_taken_back() -> None:
    said = notice(lasting=True)
    state = apply(apply(FRESH, said, T0), clear(said), after(10))
    assert state.phase == "notice" and next_expiry(state) == after(120) + GRACE_S
    assert expire(state, after(179)).phase == "notice"
    assert expire(state, after(181)).phase == "cancelled"
    # The source says it again before that: it is the same notice.
    again = apply(state, said, after(20))
    assert next_expiry(again) is None and again.noticed == T0


def test_a_lasting_notice_that_still_is_said_never_runs_out() -> None:
    state = apply(FRESH, notice(lasting=True), T0)
    assert expire(state, after(100_000)) == state


def test_what_an_operator_declared_void_counts_no_more_until_it_is_something_new() -> None:
    said = notice(lasting=True)
    state = dismiss(apply(FRESH, said, T0), after(1))
    assert state.phase == "cancelled"
    assert apply(state, said, after(2)) == state
    assert apply(state, notice(event="other"), after(2)).phase == "notice"
    taken_back = apply(state, clear(said), after(3))
    assert apply(taken_back, said, after(4)).phase == "notice"


def test_a_source_that_is_gone_is_believed_no_longer() -> None:
    state = apply(apply(FRESH, notice("aws.spot"), T0), notice("file"), T0)
    assert [h.signal.source for h in keep_sources(state, frozenset({"file"}), T0).active] == ["file"]
    assert keep_sources(state, frozenset(), T0).phase == "cancelled"
