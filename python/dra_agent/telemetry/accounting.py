"""Counters of claims: how much a device's counters grew, and how long it was idle, while a claim held it.

They survive a restart of the agent in `telemetry.json` of the state directory, and end with the claim. A reboot resets
the devices' counters: a claim that is prepared again keeps what it had, and counts on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.claim import ClaimRef
from dra_agent.errors import PermanentError
from dra_agent.json_decode import decode_json
from dra_agent.telemetry.model import COUNTERS, DeviceSample
from dra_agent.telemetry.plausibility import increase

log = logging.getLogger(__name__)

STATE_FILE = "telemetry.json"
MAX_FILE_BYTES = 16 << 20
MAX_IDLE_STEP_PERIODS = 2
"""Periods between two samples from which the time between them is not known to be idle."""


class ClaimUsage(msgspec.Struct, omit_defaults=True):
    """The counters of one claim on one device."""

    claim: ClaimRef
    device: str
    boot_id: str = ""
    sampled_at: float = 0.0
    """Of the last sample: seconds since boot."""
    raw: dict[str, tuple[float, float]] = {}
    """The device's counters when they were last known, and when that was."""
    totals: dict[str, float] = {}
    """Since the first sample of the claim, by names of COUNTERS."""
    idle_seconds: float | None = None
    """None: its utilization was never known."""
    utilization_ratio: float | None = None
    """In the last sample; None: it was not known."""


class TelemetryFailure(msgspec.Struct, frozen=True):
    """A device whose values are missing or wrong."""

    source: str
    device: str
    message: str


class SavedTelemetry(msgspec.Struct, omit_defaults=True):
    """The contents of the file."""

    usage: list[ClaimUsage] = []
    failures: list[TelemetryFailure] = []
    written_at: float = 0.0
    """Seconds since boot."""
    interval_seconds: float = 0.0
    """From one sample to the next: the interval, or the duration of the sample where it took longer."""


def load(state_dir: Path) -> SavedTelemetry:
    """Read the file; empty if there is none. Raises PermanentError if it cannot be read or is damaged."""
    path = state_dir / STATE_FILE
    try:
        return decode_json(atomic_file.read(path, MAX_FILE_BYTES), type=SavedTelemetry)
    except FileNotFoundError:
        return SavedTelemetry()
    except (OSError, msgspec.DecodeError) as error:
        raise PermanentError(
            f"the counters of claims cannot be read: {error}",
            where=str(path),
            hint="the agent replaces the file with its next sample",
        ) from error


class Accounting:
    """The counters of all claims; used by one thread."""

    def __init__(self, state_dir: Path, boot_id: str) -> None:
        self._state_dir = state_dir
        self._boot_id = boot_id
        self._failed = False
        self._usage: dict[tuple[str, str], ClaimUsage] = {}
        try:
            saved = load(state_dir).usage
        except PermanentError as error:
            log.warning("the counters of claims start again", extra={"reason": str(error)})
            saved = []
        for usage in saved:
            self._usage[usage.claim.uid, usage.device] = usage

    def add(
        self, claim: ClaimRef, device: str, sample: DeviceSample, now_s: float, period_s: float, *, has_average: bool
    ) -> list[str]:
        """Count the time since the last sample of this claim. Returns problems.

        `now_s` is seconds since boot, `period_s` the seconds from one sample to the next. `has_average`: the
        utilization is of all the time since the sample before; else of a moment, so that both samples must be 0.
        """
        usage = self._usage.get((claim.uid, device))
        if usage is None:
            usage = self._usage[claim.uid, device] = ClaimUsage(claim, device, sampled_at=now_s, boot_id=self._boot_id)
        if usage.boot_id != self._boot_id:
            usage.raw, usage.boot_id, usage.sampled_at, usage.utilization_ratio = {}, self._boot_id, now_s, None
        elapsed_s, problems = now_s - usage.sampled_at, []
        raw = dict(usage.raw)
        for name in COUNTERS:
            value = getattr(sample, name)
            if value is None:
                continue
            total = usage.totals.get(name, 0.0)
            if (before := usage.raw.get(name)) is not None:
                grown = increase(name, before[0], value, now_s - before[1])
                if grown is None:
                    problems.append(f"{name} went from {before[0]:g} to {value:g} in {now_s - before[1]:.0f} s")
                total += grown or 0.0
            usage.totals = {**usage.totals, name: total}
            raw[name] = value, now_s
        if sample.gpu_utilization_ratio is not None:
            # A longer step has time that no sample covers: the agent was stopped, or the source did not respond.
            is_covered = 0 < elapsed_s <= MAX_IDLE_STEP_PERIODS * period_s
            is_idle = sample.gpu_utilization_ratio == 0 and (has_average or usage.utilization_ratio == 0)
            usage.idle_seconds = (usage.idle_seconds or 0.0) + (elapsed_s if is_covered and is_idle else 0.0)
        usage.raw, usage.sampled_at, usage.utilization_ratio = raw, now_s, sample.gpu_utilization_ratio
        return problems

    def keep_only(self, claims: Mapping[str, Collection[str]]) -> None:
        """Drop the counters of claims that are released; devices by uid."""
        for uid, device in list(self._usage):
            if device not in claims.get(uid, ()):
                del self._usage[uid, device]

    def usage(self) -> tuple[ClaimUsage, ...]:
        """Return a copy of all counters."""
        return tuple(msgspec.structs.replace(usage) for usage in self._usage.values())

    def save(self, failures: list[TelemetryFailure], now_s: float, period_s: float) -> None:
        """Write the file; a write error is logged once."""
        saved = SavedTelemetry(list(self._usage.values()), failures, now_s, period_s)
        try:
            atomic_file.write(self._state_dir / STATE_FILE, msgspec.json.encode(saved))
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("the counters of claims cannot be saved", extra={"reason": str(error)})
            self._failed = True
