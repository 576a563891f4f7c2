"""How long a cause counts: from the first sign of it until it has stayed away for long enough.

A cause that comes back while it still counts changes nothing, and one that comes back soon after counts for longer each
time; so a device that flaps is tainted once, and not written again and again. Times are Unix time, in
seconds, by a clock that wall clock steps do not change (clock.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from dra_agent.health.issues import HealthIssue
from dra_agent.health.settings import HealthSettings

MAX_RECURRENCES = 4
"""Doublings of the time for which a cause must stay away: sixteen times at most."""
REMEMBERED_S = 10
"""Times that time, after which a cause that comes back is a new one."""


class ActiveIssue(msgspec.Struct):
    """A cause that counts for a device, from its first sign to its end."""

    device: str
    cause: HealthIssue
    began: float | None
    """None where it was there when the agent looked for the first time."""
    last: float
    """When it was seen, or happened, last."""
    happened: bool = False
    """It was told once, and no look at the device shows it."""
    relapses: int = 0
    away: bool = msgspec.field(default=False)
    """The last look did not show it."""


class IssueTracker:
    """All spells of a host. Used by one thread."""

    def __init__(self, settings: HealthSettings, spells: Iterable[ActiveIssue] = ()) -> None:
        self._settings = settings
        self._spells = {(spell.device, spell.cause.name): spell for spell in spells}
        self._ended: dict[tuple[str, str], tuple[float, int]] = {}
        """When a spell ended, and how often it had come back."""
        self.suppressed = 0
        """How often a cause came back while it still counted."""

    def __iter__(self) -> Iterator[ActiveIssue]:
        return iter(self._spells.values())

    def of(self, device: str) -> list[ActiveIssue]:
        """Give what counts for a device: the most severe first, then the oldest."""
        found = [spell for spell in self._spells.values() if spell.device == device]
        return sorted(found, key=lambda spell: (-spell.cause.severity, spell.began or 0.0, spell.cause.name))

    def observe(
        self, device: str, causes: Iterable[HealthIssue], now: float, *, first: bool = False, blind: bool = False
    ) -> bool:
        """Take note of everything that a look at a device shows; says whether a spell began or became another.

        `first`: nobody looked before, so that nobody knows since when it is so. `blind`: what was wrong before could
        not be looked at, and so is not over.
        """
        changed = False
        shown = {cause.name: cause for cause in causes}
        for cause in shown.values():
            changed |= self._meet(device, cause, now, None if first else now, happened=False)
        for spell in self.of(device):
            if spell.cause.name not in shown and not spell.happened and not blind:
                spell.away = True
        return changed

    def record_event(self, device: str, cause: HealthIssue, now: float) -> bool:
        """Take note of something that happened to a device; says whether a spell began or became another."""
        return self._meet(device, cause, now, now, happened=True)

    def end(self, now: float) -> bool:
        """End what has stayed away for long enough; says whether anything ended."""
        over = [key for key, spell in self._spells.items() if self._over(spell, now)]
        for key in over:
            self._ended[key] = (now, self._spells.pop(key).relapses)
        for key, (ended, relapses) in list(self._ended.items()):
            if now - ended > REMEMBERED_S * self._longest() * 2**relapses:
                del self._ended[key]
        return bool(over)

    def due(self, now: float) -> bool:
        """Tell whether `end` would end something."""
        return any(self._over(spell, now) for spell in self._spells.values())

    def _over(self, spell: ActiveIssue, now: float) -> bool:
        # What the last look showed lasts until a look no longer shows it, however long that takes.
        return (spell.away or spell.happened) and now - spell.last >= self._held(spell)

    def _meet(self, device: str, cause: HealthIssue, now: float, began: float | None, *, happened: bool) -> bool:
        key = (device, cause.name)
        spell = self._spells.get(key)
        if spell is None:
            relapses = self._relapses(key, now)
            self._spells[key] = ActiveIssue(device, cause, began, now, happened, relapses)
            return True
        if happened or spell.away:
            self.suppressed += 1
        worse = (cause.severity, cause.confirmed) > (spell.cause.severity, spell.cause.confirmed)
        # What was seen and happened too ends with what is seen; the words are those of the first time.
        spell.happened = spell.happened and happened
        spell.last, spell.away = max(spell.last, now), False
        if worse:
            spell.cause = cause
        return worse

    def _relapses(self, key: tuple[str, str], now: float) -> int:
        if key not in self._ended:
            return 0
        ended, relapses = self._ended.pop(key)
        soon = now - ended <= REMEMBERED_S * self._longest() * 2**relapses
        return min(relapses + 1, MAX_RECURRENCES) if soon else 0

    def _held(self, spell: ActiveIssue) -> float:
        least = self._settings.event_seconds if spell.happened else self._settings.recovery_seconds
        return least * 2.0**spell.relapses

    def _longest(self) -> float:
        return max(self._settings.event_seconds, self._settings.recovery_seconds)
