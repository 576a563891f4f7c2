"""A fatal cause evicts pods, so one look at a device is not enough for it: NVML can fail once and be well again.

It is confirmed by a second look some seconds later, or by an independent sign: the driver's own report (an XID that is
fatal). Until then it keeps new claims away, and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dra_agent.health.issues import HealthIssue, Severity

CONFIRM_AFTER_S = 5.0
"""Seconds between the two looks at least: a reset or a restart of the library passes in less."""


class Confirmation:
    """Since when looks have shown each fatal cause. Used by one thread."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        self._waiting: dict[tuple[str, str], float] = {}

    def weigh(
        self, device: str, shown: Iterable[HealthIssue], counting: Iterable[HealthIssue], now: float, *, blind: bool
    ) -> list[HealthIssue]:
        """What a look showed, with fatal causes marked until they are confirmed.

        `counting`: what counts for the device by now. `blind`: the look says nothing of what was wrong before.
        """
        shown, counting = list(shown), list(counting)
        fatal = {cause.name for cause in counting if cause.severity == Severity.FATAL and cause.confirmed}
        weighed = [self._weighed(device, cause, fatal, now) for cause in shown]
        names = {cause.name for cause in shown}
        # A blind look takes nothing back, and another one as blind would confirm nothing: it is not asked for.
        for times in (self._waiting,) if blind else (self._since, self._waiting):
            for key in [key for key in times if key[0] == device and key[1] not in names]:
                del times[key]
        return weighed

    def forget(self, devices: Iterable[str]) -> None:
        """Devices that are not there any more have nothing to be confirmed."""
        gone = set(devices)
        for times in (self._since, self._waiting):
            for key in [key for key in times if key[0] in gone]:
                del times[key]

    def due(self, now: float) -> bool:
        """Whether a look now would confirm something."""
        return any(now - since >= CONFIRM_AFTER_S for since in self._waiting.values())

    def _weighed(self, device: str, cause: HealthIssue, fatal: set[str], now: float) -> HealthIssue:
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
