"""How long a cause counts: from the first sign of it until it has stayed away for long enough.

An issue that recurs while it is active changes nothing, and one that recurs soon after is active for longer each
time; so a flapping device is tainted once, and not written repeatedly. Times are Unix time, in
seconds, by a clock that wall clock steps do not change (clock.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from dra_agent.health.issues import SEEN_IN_SYSFS, HealthIssue, Severity
from dra_agent.health.settings import HealthSettings
from dra_agent.inventory.model import STARTING

MAX_RECURRENCES = 4
"""Doublings of the time for which a cause must stay away: sixteen times at most."""
REMEMBERED_S = 10
"""Multiple of that time after which a recurring issue is a new one."""


class ActiveIssue(msgspec.Struct):
    """A cause that counts for a device, from its first sign to its end."""

    device: str
    cause: HealthIssue
    began: float | None
    """None if it existed before the first scan of the agent."""
    last: float
    """Time of the last observation or event."""
    happened: bool = False
    """It was an event, which no observation of the device shows."""
    relapses: int = 0
    away: bool = msgspec.field(default=False)
    """The last scan did not show it."""


class IssueTracker:
    """The active issues of a host. Used by one thread."""

    def __init__(self, settings: HealthSettings, active_issues: Iterable[ActiveIssue] = ()) -> None:
        self._settings = settings
        self._active: dict[tuple[str, str], ActiveIssue] = {}
        self._by_device: dict[str, dict[str, ActiveIssue]] = {}
        """The same issues, by name: every observation asks for those of each device."""
        for active in active_issues:
            self._add(active)
        self._ended: dict[tuple[str, str], tuple[float, int]] = {}
        """When an issue ended, and its number of recurrences."""
        self.suppressed = 0
        """Number of recurrences of a cause while it was active."""

    def configure(self, settings: HealthSettings) -> None:
        """Use other durations from now on, for active issues too."""
        self._settings = settings

    def __iter__(self) -> Iterator[ActiveIssue]:
        return iter(self._active.values())

    def of(self, device: str) -> list[ActiveIssue]:
        """Return the issues that apply to a device: the most severe first, then the oldest."""
        found = self._by_device.get(device)
        if found is None:
            return []
        if len(found) == 1:
            return list(found.values())
        return sorted(
            found.values(), key=lambda active: (-active.cause.severity, active.began or 0.0, active.cause.name)
        )

    def observe(
        self, device: str, causes: Iterable[HealthIssue], now: float, *, first: bool = False, blind: bool = False
    ) -> bool:
        """Record an observation of a device; return whether an issue started or changed.

        `first`: the first observation, so the start of issues is unknown. `blind`: earlier issues could
        not be checked, and so are not over, except for those that need no driver.
        """
        changed = False
        shown = {cause.name: cause for cause in causes}
        for cause in shown.values():
            changed |= self._record(device, cause, now, None if first else now, happened=False)
        for active in self.of(device):
            is_covered = not blind or active.cause.name in SEEN_IN_SYSFS
            if active.cause.name not in shown and not active.happened and is_covered:
                active.away = True
        return changed

    def record_event(self, device: str, cause: HealthIssue, now: float) -> bool:
        """Record an event of a device; return whether an issue started or changed."""
        return self._record(device, cause, now, now, happened=True)

    def resolve(self, device: str, name: str) -> bool:
        """End an issue at once, because it is known to be over; return whether it was active."""
        self._ended.pop((device, name), None)
        if self._active.pop((device, name), None) is None:
            return False
        del self._by_device[device][name]
        if not self._by_device[device]:
            del self._by_device[device]
        return True

    def end(self, now: float) -> bool:
        """End issues that were absent for long enough; return whether any ended."""
        over = [key for key, active in self._active.items() if self._over(active, now)]
        for key in over:
            self._ended[key] = (now, self._active.pop(key).relapses)
            device, name = key
            del self._by_device[device][name]
            if not self._by_device[device]:
                del self._by_device[device]
        for key, (ended, relapses) in list(self._ended.items()):
            if now - ended > REMEMBERED_S * self._longest() * 2**relapses:
                del self._ended[key]
        return bool(over)

    def due(self, now: float) -> bool:
        """Return whether `end` would end an issue."""
        return any(self._over(active, now) for active in self._active.values())

    def _over(self, active: ActiveIssue, now: float) -> bool:
        # An observed issue stays active until an observation no longer shows it.
        return (active.away or active.happened) and now - active.last >= self._held(active)

    def _record(self, device: str, cause: HealthIssue, now: float, began: float | None, *, happened: bool) -> bool:
        key = (device, cause.name)
        active = self._active.get(key)
        if active is None:
            relapses = self._relapses(key, now)
            self._add(ActiveIssue(device, cause, began, now, happened, relapses))
            return True
        if happened or active.away:
            self.suppressed += 1
        worse = (cause.severity, cause.confirmed) > (active.cause.severity, active.cause.confirmed)
        # An issue that was both observed and an event ends with the observation; its first text is kept.
        active.happened = active.happened and happened
        active.last, active.away = max(active.last, now), False
        if worse:
            active.cause = cause
        return worse

    def _add(self, active: ActiveIssue) -> None:
        self._active[active.device, active.cause.name] = active
        self._by_device.setdefault(active.device, {})[active.cause.name] = active

    def _relapses(self, key: tuple[str, str], now: float) -> int:
        if key not in self._ended:
            return 0
        ended, relapses = self._ended.pop(key)
        soon = now - ended <= REMEMBERED_S * self._longest() * 2**relapses
        return min(relapses + 1, MAX_RECURRENCES) if soon else 0

    def _held(self, active: ActiveIssue) -> float:
        if active.cause.name == STARTING:
            return 0.0
        least = self._settings.event_seconds if active.happened else self._settings.recovery_seconds
        relapses = active.relapses
        if active.cause.name in SEEN_IN_SYSFS and not active.happened:
            # A state, not a symptom: a device that returns is first without the interface that its driver makes.
            if not relapses:
                return 0.0
            relapses -= 1
        return least * 2.0**relapses

    def _longest(self) -> float:
        return max(self._settings.event_seconds, self._settings.recovery_seconds)


CONFIRM_AFTER_S = 5.0
"""Minimum seconds between the two observations: a reset or a restart of the library takes less."""


class Confirmation:
    """Since when observations have shown each fatal cause. Used by one thread."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        self._waiting: dict[tuple[str, str], float] = {}

    def with_confirmation(
        self, device: str, shown: Iterable[HealthIssue], counting: Iterable[HealthIssue], now: float, *, blind: bool
    ) -> list[HealthIssue]:
        """Return an observation with unconfirmed fatal issues marked.

        `counting`: the active issues of the device. `blind`: the observation does not cover earlier issues.
        """
        shown, counting = list(shown), list(counting)
        fatal = {cause.name for cause in counting if cause.severity == Severity.FATAL and cause.confirmed}
        confirmed = [self._confirmed(device, cause, fatal, now) for cause in shown]
        names = {cause.name for cause in shown}
        # An incomplete observation clears nothing, and another one would confirm nothing: it is not requested.
        for times in (self._waiting,) if blind else (self._since, self._waiting):
            for key in [key for key in times if key[0] == device and key[1] not in names]:
                del times[key]
        return confirmed

    def forget(self, devices: Iterable[str]) -> None:
        """Drop pending confirmations of removed devices."""
        gone = set(devices)
        for times in (self._since, self._waiting):
            for key in [key for key in times if key[0] in gone]:
                del times[key]

    def due(self, now: float) -> bool:
        """Whether an observation now would confirm an issue."""
        return any(now - since >= CONFIRM_AFTER_S for since in self._waiting.values())

    def _confirmed(self, device: str, cause: HealthIssue, fatal: set[str], now: float) -> HealthIssue:
        if cause.severity != Severity.FATAL:
            return cause
        key = (device, cause.name)
        since = self._since.setdefault(key, now)
        # Another fatal cause is an independent sign; the same one was confirmed before.
        if fatal or now - since >= CONFIRM_AFTER_S:
            self._waiting.pop(key, None)
            return cause
        self._waiting[key] = since
        return msgspec.structs.replace(cause, confirmed=False)


class Grace:
    """Since when observations have shown each transient issue. Used by one thread."""

    def __init__(self, settings: HealthSettings) -> None:
        self._grace_s = settings.fabric_grace_seconds
        self._since: dict[tuple[str, str], float] = {}

    def configure(self, settings: HealthSettings) -> None:
        """Use another duration from now on."""
        self._grace_s = settings.fabric_grace_seconds

    def without_starting(
        self, device: str, shown: Iterable[HealthIssue], active: Collection[str], now: float, *, blind: bool
    ) -> list[HealthIssue]:
        """Return an observation without the transient issues that are too young to count.

        `active`: names of the active issues of the device, which keep counting. `blind`: the observation does not
        cover earlier issues.
        """
        kept, names = [], set()
        for cause in shown:
            if cause.transient and cause.name not in active:
                names.add(cause.name)
                if now - self._since.setdefault((device, cause.name), now) < self._grace_s:
                    continue
            kept.append(cause)
        if not blind:
            self.forget([device], keep=names)
        return kept

    def forget(self, devices: Collection[str], keep: Collection[str] = ()) -> None:
        """Drop the start times of removed devices, or of issues that are over."""
        for key in [key for key in self._since if key[0] in devices and key[1] not in keep]:
            del self._since[key]
