"""The file with the state of a reclaim, which outlives the agent.

A notice survives a restart of the agent, and ends with the boot that it was received in.

Times on disk are UTC of the clock of the process that wrote them, and are converted to this process's clock on load.
Each file has the boot time of the host by the writer's clock. In the same boot that is the same moment for every
process, so the difference is by how much the wall clock was stepped between the two starts.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dra_agent import atomic_file, file_lock
from dra_agent.clock import STEADY, STEP, SteadyClock
from dra_agent.deadline import Deadline
from dra_agent.errors import SHORTAGES, RetryableError
from dra_agent.json_decode import decode_json
from dra_agent.reclaim.state import ReclaimState, next_boot

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
LOCK_TIMEOUT_S = 1.0
"""Seconds for which a save waits for that of another agent. Then it writes: the other process may be stopped."""

_Version = tuple[int, int, int]
"""Inode, size and time of change: each save replaces the file."""


class _StateDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    state: ReclaimState
    booted: datetime | None = None
    """The boot time of the host, by the writer's clock."""


class StateChangedError(RetryableError):
    """Another agent has saved a state that this one has not read yet."""


class OtherState(NamedTuple):
    """What another agent has saved."""

    known: ReclaimState
    """The last state of the file that this agent knows."""
    current: ReclaimState
    """The state of the file now; `known` if it has none that this agent can read."""
    version: _Version | None
    accepted: int
    """The value of `StateFile.accepted` when it was read."""


class StateFile:
    """The file of one state directory, which must exist.

    Agents of a rolling update share it. A save never replaces a state that this agent has not read and accepted.
    `changes` and `save` are called on one thread, the others on any.
    """

    def __init__(self, directory: Path, clock: SteadyClock = STEADY) -> None:
        self.path = directory / STATE_FILE
        self._clock = clock
        self.problem: str | None = None
        """The problem of the file that `load` read."""
        self._is_known = False
        """Whether the next two describe the file that this agent has loaded or saved last."""
        self._version: _Version | None = None
        self._state: ReclaimState | None = None
        self.accepted = 0
        """Number of states of other agents that this one has accepted."""

    def load(self, boot: str) -> ReclaimState:
        """Return the state of this boot: the saved one, or after a reboot only past events.

        An unusable file is quarantined, and `problem` reports it.
        """
        self._version, self._is_known = self._current_version(), True
        self._state = self._load(boot)
        return self._state

    @property
    def is_changed(self) -> bool:
        """Whether another agent has saved a state since the last `load`, `accept` or `save`: one stat(2)."""
        return self._is_known and self._current_version() != self._version

    def changes(self, boot: str) -> OtherState | None:
        """Return what another agent has saved; None if none has. It is to be accepted with the state that follows.

        An unreadable file, also one of a later version, is left to the agent that saved it. RetryableError where it
        can be read later.
        """
        # First of all: `accept` on another thread, at any moment from here on, makes the result obsolete.
        accepted = self.accepted
        if not self.is_changed:
            return None
        known = self._state or ReclaimState(boot)
        unusable = OtherState(known, known, self._current_version(), accepted)
        try:
            document = decode_json(atomic_file.read(self.path, _MAX_STATE_BYTES), type=_StateDocument)
        except (OSError, msgspec.DecodeError) as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                raise RetryableError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
            log.warning(
                "the reclaim state of another agent cannot be read",
                extra={"file": str(self.path), "reason": str(error)},
            )
            return unusable
        if document.version != _STATE_VERSION or document.state.boot != boot:
            return unusable
        current: ReclaimState = by_clock_of(document.state, document.booted, self._clock.booted)
        return unusable._replace(current=current)

    def accept(self, other: OtherState) -> bool:
        """Let the saves that begin after this call replace `other`; False if a state was accepted meanwhile."""
        if other.accepted != self.accepted:
            return False
        self._version, self._state, self.accepted = other.version, other.current, self.accepted + 1
        return True

    def _load(self, boot: str) -> ReclaimState:
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

    def save(self, state: ReclaimState, accepted: int | None = None) -> None:
        """Put the state on disk; it is there when this returns.

        `accepted`: the number of accepted states that are in it; None: all. RetryableError where it cannot be saved,
        StateChangedError where another agent has saved one that is not in it.
        """
        basis = self.accepted if accepted is None else accepted
        data = msgspec.json.encode(_StateDocument(_STATE_VERSION, state, self._clock.booted))
        try:
            with self._exclusive():
                # Asked again after the data is on disk: an agent that has waited long enough for the lock saves, too.
                if self._may_replace(basis):
                    atomic_file.write(self.path, data, durable=True, is_wanted=lambda: self._may_replace(basis))
                version = self._current_version()
                if not self._has(data):
                    raise StateChangedError("another agent has changed it", where=str(self.path))
                self._version, self._state, self._is_known = version, state, True
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(self.path), hint="check free space and permissions"
            ) from error

    def _may_replace(self, accepted: int) -> bool:
        return accepted == self.accepted and not self.is_changed

    def _has(self, data: bytes) -> bool:
        """Whether the file has these contents: another agent may have replaced it at once."""
        try:
            return atomic_file.read(self.path, _MAX_STATE_BYTES) == data
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let no other agent save meanwhile."""
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file_lock.lock(directory, Deadline.of(LOCK_TIMEOUT_S))
            yield
        finally:
            os.close(directory)

    def _current_version(self) -> _Version | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _set_aside(self, reason: str) -> None:
        aside = self.path
        with contextlib.suppress(OSError):
            aside = atomic_file.quarantine(self.path)
            self._version = None  # this agent has removed the file
        self.problem = f"{self.path}: damaged ({reason}); set aside as {aside.name}"
        log.error("the saved reclaim state was damaged", extra={"problem": self.problem})
