"""The durable ledger of prepared claims and their devices: entries as structs, errors as AgentError.

Nothing is cached: every call goes to the native ledger in Rust, and may wait for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import msgspec

from dra_agent import _native
from dra_agent.claim import ClaimRef, claim_device_key
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.ledger_lease import ACQUIRE_TIMEOUT_S, LeaseHistory, LedgerLease

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_NO_LEASE = nullcontext()

Lookup = Callable[[str, str], Device | None]
"""Returns the current inventory device by pool and name."""


class HeldDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that a claim holds, in the schema of the native ledger."""

    pool: str
    device: str
    request: str
    share_id: str | None = None
    admin_access: bool = False
    shared: bool = False

    @property
    def key(self) -> str:
        """Its name among the devices of the claim."""
        return claim_device_key(self.device, self.share_id)


class LedgerEntry(ClaimRef, frozen=True, omit_defaults=True):
    """A claim that holds devices, in the schema of the native ledger."""

    devices: tuple[HeldDevice, ...]
    state: str = "started"
    """"started", "completed", or a phase that only a newer agent knows."""
    payload: Any = None
    started_at: float | None = None
    """Unix time of the first record; None in records of earlier agents."""


class DeviceHeldError(RetryableError):
    """Another claim holds the device: a second holder is always refused."""


DamageKind = Literal["torn tail", "damaged record"]
""""torn tail" after a crash during a write, which loses nothing; "damaged record" otherwise (recovery.rs)."""


class LedgerDamage(msgspec.Struct, frozen=True):
    """A range of a file that is not a record."""

    file: str
    offset: int
    length: int
    kind: DamageKind = msgspec.field(name="what")
    uid: str | None = None
    """UID that was found in the damaged bytes."""


class SupersededClaim(msgspec.Struct, frozen=True):
    """A claim that was dropped: a later claim has its device, so it was released."""

    uid: str
    by: str
    pool: str
    device: str


class LedgerReport(msgspec.Struct, frozen=True):
    """State of the ledger when it was opened, and whether it can be written now."""

    claims: int
    started: tuple[str, ...]
    earlier_boot: tuple[str, ...]
    """Claims last written before this boot: their set-up in the hardware is lost."""
    damage: tuple[LedgerDamage, ...]
    set_aside: tuple[str, ...]
    """Damaged files, kept under these names below the state directory's `ledger`."""
    lost_records: int
    superseded: tuple[SupersededClaim, ...]
    foreign_records: int
    not_writable: str | None
    """Why claims cannot be recorded now. On a full disk, recorded claims can still be released."""

    def problems(self) -> list[str]:
        """Return the damage as sentences, without torn tails, which are normal."""
        messages = [
            f"{damage.file}: {damage.length} damaged bytes at {damage.offset}"
            + (f", which seem to be of claim {damage.uid}" if damage.uid else "")
            for damage in self.damage
            if damage.kind != "torn tail"
        ]
        if self.lost_records:
            messages.append(f"{self.lost_records} records are missing")
        messages += [
            f"claim {one.uid} was dropped, as claim {one.by} has its device {one.device} of pool {one.pool}"
            for one in self.superseded
        ]
        return messages


class JournalLedger:
    """The durable ledger of one state directory; safe to use from several threads."""

    _lease: LedgerLease | None = None

    def __init__(self, state_dir: Path, boot_id: str, *, shared_as: str | None = None) -> None:
        """Open the ledger; create it if it does not exist.

        With `shared_as`, the name of this agent among several, other processes may have it open as well, all of them
        shared. Reads without the lease then return the state of this process's last lease.

        Raises:
            RetryableError: The ledger cannot be read or created.
            PermanentError: Another process has it open and does not share it.
        """
        self._watchers: list[Callable[[], None]] = []
        folder = str(state_dir)
        if shared_as is None:
            self._native = _translate_errors(lambda: _native.Ledger.open(folder, boot_id))
        else:
            self._native = _translate_errors(
                lambda: _native.Ledger.open_shared(folder, boot_id, shared_as, ACQUIRE_TIMEOUT_S)
            )
            self._lease = LedgerLease(_NativeLock(self._native, self._notify))

    def __enter__(self) -> JournalLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files, so that another process can open them. Entries are kept."""
        self._native.close()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change of the entries: by this process, or found when a lease begins.

        `changed` is called on the thread that made or found the change, and must not block.
        """
        self._watchers.append(changed)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may change it."""
        return self._lease is not None

    def lease(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Hold the lease of a shared ledger: no other process reads or changes it. Does nothing if it is not shared.

        Raises RetryableError with the agent that does not release the lease by the deadline.
        """
        return _NO_LEASE if self._lease is None else self._lease.hold(deadline)

    def start(self, entry: LedgerEntry, *, durable: bool) -> None:
        """Record that a claim holds its devices. Thread-safe, like all methods.

        If not `durable`, the record may wait for that of `complete` and share its sync.

        Raises:
            DeviceHeldError: Another claim holds a device; the message names it.
            RetryableError: The disk cannot be written. As with every method, nothing has changed then.
        """
        _translate_errors(lambda: self._native.start(msgspec.json.encode(entry), durable))
        self._notify()

    def complete(self, uid: str, payload: Any) -> None:
        """Record that a started claim is prepared. Durable on return."""
        _translate_errors(lambda: self._native.complete(uid, msgspec.json.encode(payload)))
        self._notify()

    def release(self, uid: str) -> bool:
        """Remove a claim. Durable on return. False if there was none."""
        removed = _translate_errors(lambda: self._native.release(uid))
        self._notify()
        return removed

    def get(self, uid: str) -> LedgerEntry | None:
        """Return the entry of a claim."""
        found = _translate_errors(lambda: self._native.get(uid))
        return None if found is None else msgspec.json.decode(found, type=LedgerEntry)  # noqa: TID251 - the response of the Rust part

    def current(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
        """Return the entry of a claim under a new lease: another agent may have changed it since the last one."""
        with self.lease(deadline):
            return self.get(uid)

    def entries(self) -> list[LedgerEntry]:
        """Return all entries, ordered by uid."""
        return msgspec.json.decode(_translate_errors(self._native.entries), type=list[LedgerEntry])  # noqa: TID251 - the response of the Rust part

    @property
    def report(self) -> LedgerReport:
        """What was found at opening, and whether the ledger can be written now."""
        return msgspec.json.decode(_translate_errors(lambda: self._native.report), type=LedgerReport)  # noqa: TID251 - the response of the Rust part

    def compact(self, *, only_due: bool = True) -> None:
        """Replace a journal that has grown by a snapshot, or try to write again after the disk had failed.

        For a quiet moment, so that no claim waits for it. `only_due`: not while the journal is short.
        """
        with self.lease():
            if not only_due or _translate_errors(lambda: self._native.compaction_due):
                _translate_errors(self._native.compact)

    def _notify(self) -> None:
        for changed in self._watchers:
            try:
                changed()
            except Exception:  # the change is durable, and a lease that was just acquired must be released
                log.exception("a watcher of the ledger failed")


class _NativeLock:
    def __init__(self, native: _native.Ledger, changed: Callable[[], None]) -> None:
        self._native = native
        self._changed = changed

    def acquire(self, wait: float) -> LeaseHistory:
        history = _translate_errors(lambda: self._native.acquire_lease(wait))
        if history != "unchanged":
            self._changed()
        return history

    def release(self) -> None:
        _translate_errors(self._native.release_lease)

    def contended(self) -> bool:
        return self._native.is_lease_contended


def _translate_errors(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except _native.LedgerConflictError as error:
        device = str(error).partition(" is held by claim ")[0]
        raise DeviceHeldError(
            str(error), public=f"{device} is held by another claim; the agent's log names it"
        ) from error
    except _native.LedgerIoError as error:
        raise RetryableError(str(error)) from error
    except _native.LedgerUsageError as error:
        raise PermanentError(str(error)) from error
