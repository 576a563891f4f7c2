"""State of the reclaim: the signals of all sources, merged. Pure: no clock, no disk.

The safest signal counts: a notice before a hint, and the earliest deadline. Only a clear moves a deadline back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dra_agent.reclaim.signal import Signal

Phase = Literal["none", "hint", "notice", "cancelled"]

OPERATOR = "operator"
"""The source of signals that an operator requests, and their event."""
_OPERATOR_KEY = (OPERATOR, OPERATOR)
STICKY_GRACE = timedelta(seconds=60)
"""How long after its deadline a sticky notice of an unreachable source remains active."""
MAX_DISMISSED = 64
MAX_PAST_EVENTS = 64
MAX_PAST_AGE_S = 90 * 86400.0
"""Seconds for which a past event is kept: a service may list one for days."""
RESCHEDULED = timedelta(minutes=10)
"""An event that is postponed by more than this is a new one."""


class ActiveSignal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal that applies now."""

    signal: Signal = msgspec.field(name="reading")
    since: datetime
    silent_since: datetime | None = msgspec.field(default=None, name="silent")
    """Since when its source, which cannot withdraw it, does not report it any more."""


class PastEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event that was acted on or dismissed: it does not count again after a boot of the host."""

    source: str
    event: str
    boot: str
    """In which it was acted on."""
    at: float
    """When, in Unix time: other boots have no other common clock."""
    once: Literal["id", "word"] = "id"
    """See Signal."""
    deadline: datetime | None = None
    """The last that was known."""


class ReclaimState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Active signals and history of one boot of the host."""

    boot: str
    active: tuple[ActiveSignal, ...] = msgspec.field(default=(), name="held")
    """In the order of their first report."""
    noticed: datetime | None = None
    """Start of the current notice: constant until it ends, also over a restart of the agent."""
    ended: datetime | None = None
    """When the last hint or notice ended, if none holds now."""
    dismissed: tuple[tuple[str, str], ...] = ()
    """Sources and events that an operator has dismissed."""
    past: tuple[PastEvent, ...] = ()
    """The newest last."""

    @property
    def phase(self) -> Phase:
        """none, hint, notice or cancelled."""
        kinds = {active.signal.kind for active in self.active}
        if "notice" in kinds:
            return "notice"
        if "hint" in kinds:
            return "hint"
        return "none" if self.ended is None else "cancelled"

    @property
    def cause(self) -> Signal | None:
        """The signal that counts: of notices, else of hints, the one with the earliest deadline."""
        return min((active.signal for active in self.active), key=_urgency, default=None)

    @property
    def deadline(self) -> datetime | None:
        """When the node is reclaimed, if known; None without a notice."""
        cause = self.cause
        return cause.deadline if cause is not None and cause.kind == "notice" else None


def apply(state: ReclaimState, signal: Signal, now: datetime) -> ReclaimState:
    """Return the state after a signal; the same object if nothing changes."""
    key = (signal.source, signal.event)
    if signal.kind == "clear":
        return _clear(state, key, now)
    if key in state.dismissed or is_past(state, signal):
        return state
    if signal.kind == "notice":
        state = _record_past(state, signal, now)
    known = next((active for active in state.active if _key(active) == key), None)
    if known is None:
        return _with(state, (*state.active, ActiveSignal(signal, now)), now)
    merged = ActiveSignal(_safest(known.signal, signal), known.since)
    if merged == known:
        return state
    return _with(state, tuple(merged if active is known else active for active in state.active), now)


def is_past(state: ReclaimState, signal: Signal) -> bool:
    """Whether the event was acted on in an earlier boot of the host, and is not announced for a later time now."""
    for past in state.past:
        if (past.source, past.event) == (signal.source, signal.event) and past.boot != state.boot:
            later = (
                not signal.deadline_note
                and signal.deadline is not None
                and past.deadline is not None
                and signal.deadline > past.deadline + RESCHEDULED
            )
            return past.once == "word" or not later
    return False


def next_boot(state: ReclaimState, boot: str, booted: datetime, unix_now: float) -> ReclaimState:
    """Return the initial state after a reboot: only events that are over are kept."""
    for active in state.active:
        signal = active.signal
        # The time of the hint passed with the boot: the service may still list it as started.
        if signal.kind == "hint" and signal.deadline is not None and signal.deadline <= booted:
            state = _record_past(state, signal, booted)
    kept = tuple(past for past in state.past if unix_now - past.at <= MAX_PAST_AGE_S)
    return ReclaimState(boot, past=kept[-MAX_PAST_EVENTS:])


def expire(state: ReclaimState, now: datetime) -> ReclaimState:
    """Remove sticky notices with an unreachable source and a deadline that is long past."""
    return _with(state, tuple(active for active in state.active if not _over(active, now)), now)


def next_expiry(state: ReclaimState) -> datetime | None:
    """When `expire` will next change something."""
    return min((_end(active) for active in state.active if active.silent_since is not None), default=None)


def dismiss(state: ReclaimState, now: datetime) -> ReclaimState:
    """Dismiss all active signals by an operator's request: the same events of the same sources are ignored."""
    return _dismiss(state, [_key(active) for active in state.active], now)


def adopt_requests(state: ReclaimState, known: ReclaimState, current: ReclaimState, now: datetime) -> ReclaimState:
    """Return the state after the requests of operators that another agent has received.

    They are the differences between two states of that agent. Signals of its sources are not adopted. An event that is
    dismissed no more was withdrawn by its source.
    """
    withdrawn = {key for key in known.dismissed if key not in current.dismissed}
    if not withdrawn.isdisjoint(state.dismissed):
        left = tuple(key for key in state.dismissed if key not in withdrawn)
        state = msgspec.structs.replace(state, dismissed=left)
    added = [key for key in current.dismissed if key not in known.dismissed and key not in state.dismissed]
    if added:
        state = _dismiss(state, added, now)
    requested = _operator_signal(current)
    return state if requested == _operator_signal(known) else _with_operator_signal(state, requested, now)


def keep_sources(state: ReclaimState, names: frozenset[str], now: datetime) -> ReclaimState:
    """Remove signals of sources that are no longer configured."""
    return _with(state, tuple(active for active in state.active if active.signal.source in names), now)


def _dismiss(state: ReclaimState, keys: list[tuple[str, str]], now: datetime) -> ReclaimState:
    kept = []
    for active in state.active:
        if _key(active) in keys:
            state = _record_past(state, active.signal, now)
        else:
            kept.append(active)
    dismissed = (*state.dismissed, *keys)[-MAX_DISMISSED:]
    return _with(msgspec.structs.replace(state, dismissed=dismissed), tuple(kept), now)


def _operator_signal(state: ReclaimState) -> Signal | None:
    return next((active.signal for active in state.active if _key(active) == _OPERATOR_KEY), None)


def _with_operator_signal(state: ReclaimState, signal: Signal | None, now: datetime) -> ReclaimState:
    """Replace it: the other agent has merged it already, and may have cancelled an earlier one first."""
    if signal is None:
        return _clear(state, _OPERATOR_KEY, now)
    if _operator_signal(state) is None:
        return apply(state, signal, now)
    active = (ActiveSignal(signal, one.since) if _key(one) == _OPERATOR_KEY else one for one in state.active)
    return _with(state, tuple(active), now)


def _clear(state: ReclaimState, key: tuple[str, str], now: datetime) -> ReclaimState:
    if key in state.dismissed:
        # Withdrawn by its source: if the source reports it again, it is new.
        state = msgspec.structs.replace(state, dismissed=tuple(one for one in state.dismissed if one != key))
    if any((past.source, past.event, past.once) == (*key, "word") for past in state.past):
        # The value may announce the next event of its kind.
        past = tuple(one for one in state.past if (one.source, one.event) != key)
        state = msgspec.structs.replace(state, past=past)
    kept = []
    for active in state.active:
        if _key(active) != key:
            kept.append(active)
        elif active.signal.sticky and active.signal.kind == "notice":
            unreported = (
                active if active.silent_since is not None else msgspec.structs.replace(active, silent_since=now)
            )
            if not _over(unreported, now):
                kept.append(unreported)
    return _with(state, tuple(kept), now)


def _with(state: ReclaimState, active: tuple[ActiveSignal, ...], now: datetime) -> ReclaimState:
    if active == state.active:
        return state
    noticed = (state.noticed or now) if any(one.signal.kind == "notice" for one in active) else None
    ended = None if active else (now if state.active else state.ended)
    return msgspec.structs.replace(state, active=active, noticed=noticed, ended=ended)


def _record_past(state: ReclaimState, signal: Signal, now: datetime) -> ReclaimState:
    if not signal.once:
        return state
    key = (signal.source, signal.event)
    known = next((one for one in state.past if (one.source, one.event) == key), None)
    if known is not None and (known.boot, known.deadline) == (state.boot, signal.deadline):
        return state
    event = PastEvent(*key, state.boot, now.timestamp(), signal.once, signal.deadline)
    others = tuple(one for one in state.past if (one.source, one.event) != key)
    return msgspec.structs.replace(state, past=(*others, event)[-MAX_PAST_EVENTS:])


def _safest(known: Signal, latest: Signal) -> Signal:
    if known.kind == "hint":
        return latest
    if latest.kind == "hint":
        return known
    # Of two deadlines for one event the earlier one is kept, with the latest text.
    earlier = min((r for r in (latest, known) if r.deadline is not None), key=_deadline, default=latest)
    return msgspec.structs.replace(
        latest, deadline=earlier.deadline, deadline_note=earlier.deadline_note, sticky=known.sticky or latest.sticky
    )


def _key(active: ActiveSignal) -> tuple[str, str]:
    return active.signal.source, active.signal.event


def _end(active: ActiveSignal) -> datetime:
    # A sticky notice without a deadline counts from the time at which its source stopped reporting it.
    start = active.signal.deadline or active.silent_since or active.since
    return max(start, active.silent_since or start) + STICKY_GRACE


def _over(active: ActiveSignal, now: datetime) -> bool:
    return active.silent_since is not None and now >= _end(active)


def _deadline(signal: Signal) -> datetime:
    assert signal.deadline is not None
    return signal.deadline


def _urgency(signal: Signal) -> tuple[bool, bool, float, str, str]:
    stamp = signal.deadline.timestamp() if signal.deadline is not None else 0.0
    return signal.kind != "notice", signal.deadline is None, stamp, signal.source, signal.event
