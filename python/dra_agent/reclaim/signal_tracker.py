"""Current signals of each source. Forwards new, changed and withdrawn signals once.

It also tracks the health of each source. An unreachable source keeps its last signals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import msgspec

from dra_agent.clock import STEADY
from dra_agent.reclaim.signal import Signal

log = logging.getLogger(__name__)

MAX_SIGNALS = 32
"""Maximum signals of one source."""
DEADLINE_TOLERANCE = timedelta(seconds=3)
"""Deadlines that differ by less are equal: they are converted between clocks with a resolution of one second."""
LOG_INTERVAL_S = 600.0
"""Seconds after which an unreachable source is logged again."""
MIN_LOG_INTERVAL_S = 60.0
"""Minimum seconds between two such lines, for a source that flaps."""


class SourceHealth(msgspec.Struct):
    """Health of one source."""

    source: str
    up: bool | None = None
    """None: not polled yet."""
    last_success: float | None = None
    """Time of the last successful poll by the clock of the process, as Unix time."""
    failures: int = 0
    why: str = ""
    signals: int = 0


class SignalTracker:
    """The signals of all sources. Not safe for threads: it lives on the event loop."""

    def __init__(
        self,
        names: Iterable[str],
        on_signal: Callable[[Signal], None],
        *,
        known: Iterable[Signal] = (),
        clock: Callable[[], float] = STEADY.unix,
    ) -> None:
        """`known` are the signals of an earlier run: the first successful poll of a source clears missing ones."""
        self._on_signal = on_signal
        self._clock = clock
        self._health = {name: SourceHealth(name) for name in names}
        self._current: dict[str, dict[str, Signal]] = {}
        self._warned_at: dict[tuple[str, str], float] = {}
        self._logged_down: set[str] = set()
        for signal in known:
            self._current.setdefault(signal.source, {})[signal.event] = signal

    def observed(self, source: str, signals: Sequence[Signal]) -> None:
        """Record a successful poll: the source has exactly these signals."""
        self._record_success(source, len(signals))
        if len(signals) > MAX_SIGNALS:
            self._warn(
                source, "a source reports too many signals", {"readings": len(signals)}, interval_s=MIN_LOG_INTERVAL_S
            )
        # The safest first: it must not be cut off, and it wins over other signals of the same event.
        kept = sorted(signals, key=_safest_first)[:MAX_SIGNALS]
        before = self._current.get(source, {})
        current = {signal.event: _ignore_rounding(signal, before.get(signal.event)) for signal in reversed(kept)}
        self._current[source] = current
        for event, signal in current.items():
            if before.get(event) != signal:
                self._log(signal, event in before)
                self._on_signal(signal)
        for event, signal in before.items():
            if event not in current:
                log.info(
                    "the source no longer reports it",
                    extra={"source": source, "event": event, "what": signal.description},
                )
                self._on_signal(Signal(source, "clear", event, signal.description))

    def failed(self, source: str, why: str) -> None:
        """Record a failed poll; the signals of the source are kept."""
        source_health = self._health.setdefault(source, SourceHealth(source))
        source_health.failures += 1
        source_health.up = False
        source_health.why = why
        interval_s = LOG_INTERVAL_S if source in self._logged_down else MIN_LOG_INTERVAL_S
        if self._warn(source, "a source of reclaim notices is unreachable", {"reason": why}, interval_s=interval_s):
            self._logged_down.add(source)

    def source_health(self) -> list[SourceHealth]:
        """Return the health of each source."""
        return [msgspec.structs.replace(source_health) for source_health in self._health.values()]

    def _record_success(self, source: str, signals: int) -> None:
        source_health = self._health.setdefault(source, SourceHealth(source))
        if source in self._logged_down:
            self._logged_down.discard(source)
            log.info("the source is reachable again", extra={"source": source})
        source_health.up, source_health.why, source_health.signals = True, "", signals
        source_health.last_success = self._clock()

    def _warn(self, source: str, message: str, extra: dict[str, object], *, interval_s: float) -> bool:
        """Log unless this message of the source was logged within `interval_s`; return whether it was."""
        key, now = (source, message), self._clock()
        if now - self._warned_at.get(key, now - interval_s) < interval_s:
            return False
        self._warned_at[key] = now
        log.warning(message, extra={"source": source, **extra})
        return True

    def _log(self, signal: Signal, changed: bool) -> None:
        extra: dict[str, object] = {"source": signal.source, "event": signal.event, "what": signal.description}
        if signal.deadline is not None:
            extra["deadline"] = signal.deadline.isoformat()
        if signal.deadline_note:
            extra["doubt"] = signal.deadline_note
        verb = "changed" if changed else "received"
        level = logging.WARNING if signal.kind == "notice" else logging.INFO
        log.log(level, f"reclaim {signal.kind} {verb}", extra=extra)


def _safest_first(signal: Signal) -> tuple[bool, bool, float]:
    deadline = signal.deadline
    return signal.kind != "notice", deadline is None, 0.0 if deadline is None else deadline.timestamp()


def _ignore_rounding(current: Signal, before: Signal | None) -> Signal:
    """Return the previous signal if only the rounding of its deadline differs."""
    if before is None or msgspec.structs.replace(current, deadline=before.deadline) != before:
        return current
    if current.deadline is None or before.deadline is None:
        return current
    # A deadline that is not the announced one was computed from the time of the poll.
    return before if current.deadline_note or abs(current.deadline - before.deadline) < DEADLINE_TOLERANCE else current
