"""The file with the progress of the claims of a notice, which outlives the agent.

It is written after the taints; a lost or late file affects only messages. Its times are those of the writer's clock, as
in the file with the state.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.claim import ClaimRef
from dra_agent.clock import STEADY, STEP, SteadyClock
from dra_agent.json_decode import decode_json
from dra_agent.reclaim.state_file import by_clock_of
from dra_agent.reclaim.status import ClaimReleaseStatus

log = logging.getLogger(__name__)

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

    def save(self, kept: SavedProgress) -> bool:
        """Write the file if this agent is the leader; returns whether it was written. An error is logged once."""
        if not self._is_leader():
            return False
        try:
            atomic_file.write(
                self._path,
                msgspec.json.encode(_ProgressDocument(_PROGRESS_VERSION, kept, self._clock.booted)),
                durable=True,
            )
        except OSError as error:
            if not self._complained:
                log.warning(
                    "the release states of claims cannot be saved", extra={"reason": error.strerror or str(error)}
                )
            self._complained = True
            return False
        self._complained = False
        return True


def saved_claims(records: Iterable[ClaimReleaseStatus]) -> tuple[SavedClaim, ...]:
    """Return the part of records that is saved."""
    names = SavedClaim.__struct_fields__
    return tuple(SavedClaim(**{name: getattr(record, name) for name in names}) for record in records)
