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
SAME = timedelta(seconds=3)
"""Deadlines that differ by less are one: they pass through clocks that are read to a second."""
LOG_AGAIN_AFTER_S = 600.0
"""Seconds after which an unreachable source is logged again."""
FLAPPING_S = 60.0
"""Seconds between two such lines at least, for a source that comes and goes."""


class SourceHealth(msgspec.Struct):
    """Health of one source."""

    source: str
    up: bool | None = None
    """None: not polled yet."""
    last_good: float | None = None
    """When the last good look was, by the clock of the process, as Unix time."""
    failures: int = 0
    why: str = ""
    readings: int = 0


class SignalTracker:
    """The words of all sources. Not safe for threads: it lives on the event loop."""

    def __init__(
        self,
        names: Iterable[str],
        tell: Callable[[Signal], None],
        *,
        known: Iterable[Signal] = (),
        clock: Callable[[], float] = STEADY.unix,
    ) -> None:
        """`known` are the signals of an earlier run: the first successful poll of a source clears missing ones."""
        self._tell = tell
        self._clock = clock
        self._hearing = {name: SourceHealth(name) for name in names}
        self._said: dict[str, dict[str, Signal]] = {}
        self._complained: dict[str, float] = {}
        self._said_down: set[str] = set()
        for reading in known:
            self._said.setdefault(reading.source, {})[reading.event] = reading

    def add(self, names: Iterable[str]) -> None:
        """Add sources."""
        for name in names:
            self._hearing.setdefault(name, SourceHealth(name))

    def seen(self, source: str, readings: Sequence[Signal]) -> None:
        """Take in a good look: exactly these readings hold."""
        self._heard(source, len(readings))
        if len(readings) > MAX_SIGNALS:
            self._complain(f"{source} ", "a source reports too many signals", {"readings": len(readings)})
        # The safest first: it must not be cut off, and of several words about one event it is the one that counts.
        kept = sorted(readings, key=_safest_first)[:MAX_SIGNALS]
        before = self._said.get(source, {})
        said = {reading.event: _settled(reading, before.get(reading.event)) for reading in reversed(kept)}
        self._said[source] = said
        for event, reading in said.items():
            if before.get(event) != reading:
                self._log(reading, event in before)
                self._tell(reading)
        for event, reading in before.items():
            if event not in said:
                log.info(
                    "the source no longer reports it", extra={"source": source, "event": event, "what": reading.what}
                )
                self._tell(Signal(source, "clear", event, reading.what))

    def failed(self, source: str, why: str) -> None:
        """Record a failed poll; the signals of the source are kept."""
        hearing = self._hearing.setdefault(source, SourceHealth(source))
        hearing.failures += 1
        hearing.up = False
        hearing.why = why
        if self._complain(source, "a source of reclaim notices is unreachable", {"reason": why}):
            self._said_down.add(source)

    def hearing(self) -> list[SourceHealth]:
        """Return the health of each source."""
        return [msgspec.structs.replace(hearing) for hearing in self._hearing.values()]

    def _heard(self, source: str, readings: int) -> None:
        hearing = self._hearing.setdefault(source, SourceHealth(source))
        if source in self._said_down:
            self._said_down.discard(source)
            log.info("the source is reachable again", extra={"source": source})
        hearing.up, hearing.why, hearing.readings = True, "", readings
        hearing.last_good = self._clock()

    def _complain(self, key: str, message: str, extra: dict[str, object]) -> bool:
        now = self._clock()
        pause = LOG_AGAIN_AFTER_S if key in self._said_down else FLAPPING_S
        if now - self._complained.get(key, now - pause) < pause:
            return False
        self._complained[key] = now
        log.warning(message, extra={"source": key.strip(), **extra})
        return True

    def _log(self, reading: Signal, changed: bool) -> None:
        extra: dict[str, object] = {"source": reading.source, "event": reading.event, "what": reading.what}
        if reading.deadline is not None:
            extra["deadline"] = reading.deadline.isoformat()
        if reading.deadline_note:
            extra["doubt"] = reading.deadline_note
        verb = "changed" if changed else "received"
        level = logging.WARNING if reading.kind == "notice" else logging.INFO
        log.log(level, f"reclaim {reading.kind} {verb}", extra=extra)


def _safest_first(reading: Signal) -> tuple[bool, bool, float]:
    deadline = reading.deadline
    return reading.kind != "notice", deadline is None, 0.0 if deadline is None else deadline.timestamp()


def _settled(said: Signal, before: Signal | None) -> Signal:
    """Return the previous signal if only the rounding of its deadline differs."""
    if before is None or msgspec.structs.replace(said, deadline=before.deadline) != before:
        return said
    if said.deadline is None or before.deadline is None:
        return said
    # A deadline that is not the announced one was reckoned from the moment of the look.
    return before if said.deadline_note or abs(said.deadline - before.deadline) < SAME else said
