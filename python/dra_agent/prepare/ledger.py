"""The ledger in Rust as `prepare` knows it: entries as structs, and its errors as the agent's own.

It keeps nothing: every call goes to the native ledger, and may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from dra_agent import _native
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare.ledger_lease import WAIT, LeaseHistory, LedgerLease
from dra_agent.prepare.ledger_types import DeviceHeldError, LedgerEntry

_T = TypeVar("_T")
_ALONE = nullcontext()


class LedgerDamage(msgspec.Struct, frozen=True):
    """A stretch of a file that is no record."""

    file: str
    offset: int
    length: int
    what: str
    """"torn tail" after a crash in the middle of a write, which is no loss; "damaged record" otherwise."""
    uid: str | None = None
    """The claim that the damaged bytes seem to speak of."""


class SupersededClaim(msgspec.Struct, frozen=True):
    """A claim that was dropped, because a later one has its device, which proves that it was released."""

    uid: str
    by: str
    pool: str
    device: str


class LedgerReport(msgspec.Struct, frozen=True):
    """What was found when the ledger was opened, and whether it can be written now."""

    claims: int
    started: tuple[str, ...]
    earlier_boot: tuple[str, ...]
    """Claims last written before this boot: what was set up in the hardware for them is gone."""
    damage: tuple[LedgerDamage, ...]
    set_aside: tuple[str, ...]
    """Damaged files, kept under these names below the state directory's `ledger`."""
    lost_records: int
    superseded: tuple[SupersededClaim, ...]
    foreign_records: int
    not_writable: str | None
    """Why nothing can be recorded at present; every change is refused until it can."""

    def problems(self) -> list[str]:
        """Say in sentences what was damaged; a torn tail is ordinary."""
        told = [
            f"{damage.file}: {damage.length} damaged bytes at {damage.offset}"
            + (f", which seem to be of claim {damage.uid}" if damage.uid else "")
            for damage in self.damage
            if damage.what != "torn tail"
        ]
        if self.lost_records:
            told.append(f"{self.lost_records} records are missing")
        told += [
            f"claim {one.uid} was dropped, as claim {one.by} has its device {one.device} of pool {one.pool}"
            for one in self.superseded
        ]
        return told


class JournalLedger:
    """The durable ledger of one state directory; safe to use from several threads."""

    def __init__(self, state_dir: Path, boot_id: str, *, shared_as: str | None = None) -> None:
        """Open it, and make it where there is none.

        With `shared_as`, the name of this agent among several, others may have it open too, all of them so; what is
        read outside a turn is then what was true in this process's last one.
        RetryableError where it cannot be read or made, PermanentError where another process has it and does not share.
        """
        folder = str(state_dir)
        if shared_as is None:
            self._native = _raising(lambda: _native.Ledger.open(folder, boot_id))
            self._turns = None
        else:
            self._native = _raising(lambda: _native.Ledger.open_shared(folder, boot_id, shared_as, WAIT))
            self._turns = LedgerLease(_NativeLock(self._native))

    def __enter__(self) -> JournalLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have it; what is held stays held."""
        self._native.close()

    def turn(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Be the one process that reads and changes the ledger; nothing to wait for where none shares it.

        RetryableError names the agent that does not give its turn back by the deadline.
        """
        return _ALONE if self._turns is None else self._turns.hold(deadline)

    def start(self, entry: LedgerEntry, *, durable: bool) -> None:
        """Take the devices for a claim; DeviceHeldError names the claim that has one already."""
        _raising(lambda: self._native.start(msgspec.json.encode(entry), durable))

    def complete(self, uid: str, payload: Any) -> None:
        """Record that a started claim is prepared; durable when it returns."""
        _raising(lambda: self._native.complete(uid, msgspec.json.encode(payload)))

    def release(self, uid: str) -> bool:
        """Record that a claim holds nothing; durable when it returns. False where it held nothing."""
        return _raising(lambda: self._native.release(uid))

    def get(self, uid: str) -> LedgerEntry | None:
        """Find a claim."""
        found = _raising(lambda: self._native.get(uid))
        return None if found is None else msgspec.json.decode(found, type=LedgerEntry)

    def current(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
        """Find a claim in a turn: another agent may have changed it since this one's last."""
        with self.turn(deadline):
            return self.get(uid)

    def entries(self) -> list[LedgerEntry]:
        """List all claims, ordered by uid."""
        return msgspec.json.decode(_raising(self._native.entries), type=list[LedgerEntry])

    def holders(self, pool: str, device: str) -> list[LedgerEntry]:
        """List the claims that name a device, shared and admin access included."""
        return msgspec.json.decode(_raising(lambda: self._native.holders(pool, device)), type=list[LedgerEntry])

    @property
    def report(self) -> LedgerReport:
        """What was found at opening, and whether the ledger can be written now."""
        return msgspec.json.decode(_raising(lambda: self._native.report), type=LedgerReport)

    def compact(self) -> None:
        """Replace a journal that has grown by a snapshot, or try to write again after the disk had failed.

        For a quiet moment, so that no claim waits for it.
        """
        with self.turn():
            if _raising(lambda: self._native.compaction_due):
                _raising(self._native.compact)


class _NativeLock:
    def __init__(self, native: _native.Ledger) -> None:
        self._native = native

    def acquire(self, wait: float) -> LeaseHistory:
        return _raising(lambda: self._native.take_turn(wait))

    def release(self) -> None:
        _raising(self._native.give_turn)

    def contended(self) -> bool:
        return self._native.turn_wanted


def _raising(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except _native.LedgerConflictError as error:
        raise DeviceHeldError(str(error)) from error
    except _native.LedgerIoError as error:
        raise RetryableError(str(error)) from error
    except _native.LedgerUsageError as error:
        raise PermanentError(str(error)) from error
