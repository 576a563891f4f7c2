"""Files of a reclaim that outlive the agent: its state, and the progress of the claims of a notice.

A notice survives a restart of the agent, and ends with the boot that it was received in. The progress is written after
the taints; a lost or late progress file affects only messages.

Times on disk are UTC of the clock of the process that wrote them, and are converted to this process's clock on load.
Each file has the boot time of the host by the writer's clock. In the same boot that is the same moment for every
process, so the difference is by how much the wall clock was stepped between the two starts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from dra_agent import atomic_file
from dra_agent.claim import ClaimRef
from dra_agent.clock import STEADY, STEP, SteadyClock
from dra_agent.errors import RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.reclaim.state import ReclaimState, next_boot
from dra_agent.reclaim.status import ClaimReleaseStatus

log = logging.getLogger(__name__)


def by_clock_of(value: Any, wrote: datetime | None, booted: datetime) -> Any:
    """A struct with every time in it moved from the writer's clock to that of this process.

    `wrote` and `booted`: when the host booted, by each; None: an older version wrote it, by a clock not known.
    """
    by = timedelta() if wrote is None else booted - wrote
    return value if abs(by) < STEP else _moved(value, by)


def _moved(value: Any, by: timedelta) -> Any:
    if isinstance(value, datetime):
        try:
            return value + by
        except OverflowError:
            return value
    if isinstance(value, tuple):
        return tuple(_moved(one, by) for one in value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: _moved(getattr(value, name), by) for name in value.__struct_fields__}
        )
    return value


STATE_FILE = "reclaim.json"
_STATE_VERSION = 1
_MAX_STATE_BYTES = 4 * 1024 * 1024


class _StateDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    state: ReclaimState
    booted: datetime | None = None
    """The boot time of the host, by the writer's clock."""


class StateFile:
    """The file of one state directory, which must exist."""

    def __init__(self, directory: Path, clock: SteadyClock = STEADY) -> None:
        self.path = directory / STATE_FILE
        self._clock = clock
        self.problem: str | None = None
        """The problem of the file that `load` read."""

    def load(self, boot: str) -> ReclaimState:
        """Return the state of this boot: the saved one, or after a reboot only past events.

        An unusable file is quarantined, and `problem` reports it.
        """
        fresh = ReclaimState(boot)
        try:
            text = atomic_file.read(self.path, _MAX_STATE_BYTES)
        except FileNotFoundError:
            return fresh
        except OSError as error:
            self.problem = f"{self.path}: cannot be read: {error.strerror}"
            log.error("the saved reclaim state cannot be read", extra={"problem": self.problem})
            return fresh
        try:
            kept = decode_json(text, type=_StateDocument)
        except msgspec.DecodeError as error:
            self._set_aside(str(error))
            return fresh
        if kept.version != _STATE_VERSION:
            self._set_aside(f"version {kept.version} is not known")
            return fresh
        if kept.state.boot != boot:
            if kept.state.active:
                log.info("the host was restarted: earlier signals no longer apply")
            return next_boot(kept.state, boot, self._clock.booted, self._clock.to_wall(self._clock.now()).timestamp())
        state: ReclaimState = by_clock_of(kept.state, kept.booted, self._clock.booted)
        return state

    def save(self, state: ReclaimState) -> None:
        """Put the state on disk; it is there when this returns. RetryableError where it cannot be."""
        try:
            atomic_file.write(
                self.path, msgspec.json.encode(_StateDocument(_STATE_VERSION, state, self._clock.booted)), durable=True
            )
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(self.path), hint="check free space and permissions"
            ) from error

    def _set_aside(self, reason: str) -> None:
        aside = self.path
        with contextlib.suppress(OSError):
            aside = atomic_file.quarantine(self.path)
        self.problem = f"{self.path}: damaged ({reason}); set aside as {aside.name}"
        log.error("the saved reclaim state was damaged", extra={"problem": self.problem})


PROGRESS_FILE = "reclaim-claims.json"
_PROGRESS_VERSION = 1
_MAX_PROGRESS_BYTES = 16 * 1024 * 1024
_EARLIER_MILESTONES = {"kept": "not_released"}
"""Milestones by their names in files of earlier agents."""


class SavedClaim(ClaimRef, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One claim; see ClaimReleaseStatus."""

    seen: datetime
    tainted: datetime | None = None
    pods_gone: datetime | None = None
    unprepared: datetime | None = None
    refused: datetime | None = None
    released: datetime | None = None
    overdue: datetime | None = None

    def record(self) -> ClaimReleaseStatus:
        """Return the record to continue with."""
        return ClaimReleaseStatus(**msgspec.structs.asdict(self))


class SavedProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far the release was."""

    boot: str
    noticed: datetime
    """Of the notice that it is about."""
    tainted: datetime | None = None
    """When every device was tainted."""
    reported: dict[str, str] = msgspec.field(default_factory=dict, name="told")
    """The last messages, by kind."""
    claims: tuple[SavedClaim, ...] = ()


class _ProgressDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kept: SavedProgress
    booted: datetime | None = None
    """The boot time of the host, by the writer's clock."""


class ProgressFile:
    """The file of one state directory, in one boot of the host. Both calls wait for the disk."""

    def __init__(
        self, directory: Path, boot: str, *, is_leader: Callable[[], bool] = lambda: True, clock: SteadyClock = STEADY
    ) -> None:
        """`is_leader`: whether this agent writes, of several in a rolling update."""
        self._path = directory / PROGRESS_FILE
        self._is_leader = is_leader
        self._clock = clock
        self.boot = boot
        self._complained = False

    def load(self, noticed: datetime) -> SavedProgress:
        """Return the progress of that notice; empty if the file belongs to another one or is damaged."""
        fresh = SavedProgress(self.boot, noticed)
        try:
            found = decode_json(atomic_file.read(self._path, _MAX_PROGRESS_BYTES), type=_ProgressDocument)
        except FileNotFoundError:
            return fresh
        except OSError as error:
            log.error(
                "the saved release states of claims cannot be read",
                extra={"file": str(self._path), "reason": str(error)},
            )
            return fresh
        except msgspec.DecodeError as error:
            aside = self._path
            with contextlib.suppress(OSError):
                aside = atomic_file.quarantine(self._path)
            log.error(
                "the saved release states of claims were damaged", extra={"reason": str(error), "aside": aside.name}
            )
            return fresh
        if found.version != _PROGRESS_VERSION or found.kept.boot != self.boot:
            return fresh
        kept: SavedProgress = by_clock_of(found.kept, found.booted, self._clock.booted)
        # Converted times may differ by the time between two reads of the clocks.
        if abs(kept.noticed - noticed) >= STEP:
            return fresh
        reported = {_EARLIER_MILESTONES.get(name, name): message for name, message in kept.reported.items()}
        return msgspec.structs.replace(kept, noticed=noticed, reported=reported)

    def save(self, kept: SavedProgress) -> None:
        """Write the file; a write error is logged once."""
        if not self._is_leader():
            return
        try:
            atomic_file.write(
                self._path,
                msgspec.json.encode(_ProgressDocument(_PROGRESS_VERSION, kept, self._clock.booted)),
                durable=True,
            )
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning(
                    "the release states of claims cannot be saved", extra={"reason": error.strerror or str(error)}
                )
            self._complained = True


def saved_claims(records: Iterable[ClaimReleaseStatus]) -> tuple[SavedClaim, ...]:
    """Return the part of records that is saved."""
    names = SavedClaim.__struct_fields__
    return tuple(SavedClaim(**{name: getattr(record, name) for name in names}) for record in records)
