"""The state on disk: a notice survives a restart of the agent, and ends with the boot that it was for."""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime
from pathlib import Path

import msgspec

from dra_agent import atomic_file
from dra_agent.clock import STEADY, SteadyClock
from dra_agent.errors import RetryableError
from dra_agent.reclaim.state import ReclaimState, next_boot
from dra_agent.reclaim.stored_times import by_clock_of

log = logging.getLogger(__name__)

FILE = "reclaim.json"
_VERSION = 1
_MOST = 4 * 1024 * 1024


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    state: ReclaimState
    booted: datetime | None = None
    """When the host booted, by the clock of who wrote this."""


class StateFile:
    """The file of one state directory, which must exist."""

    def __init__(self, directory: Path, clock: SteadyClock = STEADY) -> None:
        self.path = directory / FILE
        self._clock = clock
        self.problem: str | None = None
        """What was wrong with the file that `load` found."""

    def load(self, boot: str) -> ReclaimState:
        """Give the state of this boot: what was kept, or after a restart of the host only which events are over.

        A file that says nothing usable is set aside, and `problem` says so.
        """
        fresh = ReclaimState(boot)
        try:
            text = atomic_file.read(self.path, _MOST)
        except FileNotFoundError:
            return fresh
        except OSError as error:
            self.problem = f"{self.path}: cannot be read: {error.strerror}"
            log.error("what was known of a reclaim cannot be read", extra={"problem": self.problem})
            return fresh
        try:
            kept = msgspec.json.decode(text, type=_File)
        except msgspec.DecodeError as error:
            self._set_aside(str(error))
            return fresh
        if kept.version != _VERSION:
            self._set_aside(f"version {kept.version} is not known")
            return fresh
        if kept.state.boot != boot:
            if kept.state.held:
                log.info("the host was restarted: what was announced for it before is over")
            return next_boot(kept.state, boot, self._clock.booted, self._clock.to_wall(self._clock.now()).timestamp())
        state: ReclaimState = by_clock_of(kept.state, kept.booted, self._clock.booted)
        return state

    def save(self, state: ReclaimState) -> None:
        """Put the state on disk; it is there when this returns. RetryableError where it cannot be."""
        try:
            atomic_file.write(self.path, msgspec.json.encode(_File(_VERSION, state, self._clock.booted)), durable=True)
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(self.path), hint="check free space and permissions"
            ) from error

    def _set_aside(self, reason: str) -> None:
        aside = self.path
        with contextlib.suppress(OSError):
            aside = atomic_file.quarantine(self.path)
        self.problem = f"{self.path}: damaged ({reason}); set aside as {aside.name}"
        log.error("what was known of a reclaim was damaged", extra={"problem": self.problem})
