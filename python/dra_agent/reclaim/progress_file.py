"""What became of the claims of a notice, on disk: an agent that is started anew goes on with it and tells of them all.

Written after the taints, when something has changed; a file that is lost or late costs only what people are told.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.clock import STEADY, STEP, SteadyClock
from dra_agent.reclaim.release_status import ClaimReleaseStatus
from dra_agent.reclaim.stored_times import by_clock_of

log = logging.getLogger(__name__)

FILE = "reclaim-claims.json"
_VERSION = 1
_MOST = 16 * 1024 * 1024


class SavedClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One claim; see ClaimRecord."""

    uid: str
    namespace: str
    name: str
    seen: datetime
    tainted: datetime | None = None
    pods_gone: datetime | None = None
    unprepared: datetime | None = None
    refused: datetime | None = None
    released: datetime | None = None
    overdue: datetime | None = None

    def record(self) -> ClaimReleaseStatus:
        """As it goes on."""
        return ClaimReleaseStatus(**msgspec.structs.asdict(self))


class SavedProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far the release was."""

    boot: str
    noticed: datetime
    """Of the notice that it is about."""
    tainted: datetime | None = None
    """When every device was tainted."""
    told: dict[str, str] = {}
    """What people were told last, by its kind."""
    claims: tuple[SavedClaim, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    kept: SavedProgress
    booted: datetime | None = None
    """When the host booted, by the clock of who wrote this."""


class ProgressFile:
    """The file of one state directory, in one boot of the host. Both calls wait for the disk."""

    def __init__(
        self, directory: Path, boot: str, *, newest: Callable[[], bool] = lambda: True, clock: SteadyClock = STEADY
    ) -> None:
        """`newest`: whether this is the agent that writes, of several that share the directory for a while."""
        self._path = directory / FILE
        self._newest = newest
        self._clock = clock
        self.boot = boot
        self._complained = False

    def load(self, noticed: datetime) -> SavedProgress:
        """Give what is known of that notice; nothing where the file is of another one, or damaged."""
        fresh = SavedProgress(self.boot, noticed)
        try:
            found = msgspec.json.decode(atomic_file.read(self._path, _MOST), type=_File)
        except FileNotFoundError:
            return fresh
        except OSError as error:
            log.error("what became of claims cannot be read", extra={"file": str(self._path), "reason": str(error)})
            return fresh
        except msgspec.DecodeError as error:
            aside = self._path
            with contextlib.suppress(OSError):
                aside = atomic_file.quarantine(self._path)
            log.error("what became of claims was damaged", extra={"reason": str(error), "aside": aside.name})
            return fresh
        if found.version != _VERSION or found.kept.boot != self.boot:
            return fresh
        kept: SavedProgress = by_clock_of(found.kept, found.booted, self._clock.booted)
        # Moved times may differ by what reading two clocks takes.
        same = abs(kept.noticed - noticed) < STEP
        return msgspec.structs.replace(kept, noticed=noticed) if same else fresh

    def save(self, kept: SavedProgress) -> None:
        """Put it on disk; a disk that refuses is complained about once."""
        if not self._newest():
            return
        try:
            atomic_file.write(self._path, msgspec.json.encode(_File(_VERSION, kept, self._clock.booted)), durable=True)
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("what became of claims is not kept", extra={"reason": error.strerror or str(error)})
            self._complained = True


def kept_claims(records: Iterable[ClaimReleaseStatus]) -> tuple[SavedClaim, ...]:
    """Take from records what outlives the agent."""
    names = SavedClaim.__struct_fields__
    return tuple(SavedClaim(**{name: getattr(record, name) for name in names}) for record in records)
