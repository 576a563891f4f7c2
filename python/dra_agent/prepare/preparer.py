"""Prepares and unprepares one claim, in an order that can be repaired after a crash at any point.

Prepare: start the claim in the ledger → vendor set-up → complete it in the ledger (the only sync) → metadata files, if
enabled → CDI spec → response. Unprepare: remove the CDI spec and the files → undo the set-up → release in the ledger.
So a spec exists only for a claim that is completed in the ledger. `recovery` repairs the state after a crash.

Locks, in the order of acquisition: the claim's, its devices' (across processes if several agents share the ledger), the
set-ups' own, and last the lease of the ledger, which is short and held for nothing else. The holder of a
device's lock knows that no work is in progress on the claims that hold it: docs/explanation/ledger.md,
"Agents that share a ledger".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec

from dra_agent.after_response import later
from dra_agent.cdi.claim import ClaimSpec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.metadata import MetadataDirectory
from dra_agent.cdi.names import check_uid
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.clock import wall_now
from dra_agent.deadline import CALL_TIMEOUT_S, Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.claim_files import ClaimFiles
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry, Lookup
from dra_agent.prepare.local_devices import LocalDevices
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, KeyedLocks
from dra_agent.prepare.ownership import NoOwnership, Ownership
from dra_agent.prepare.plan import plan
from dra_agent.prepare.record import ClaimRecord
from dra_agent.prepare.recovery import ClaimRecovery, lock_names, undo_abandoned
from dra_agent.prepare.setup import DeviceSetup, Kind
from dra_agent.prepare.setup_runner import ensure, run, undo

log = logging.getLogger(__name__)

STARTED = "started"
COMPLETED = "completed"
LEDGER_TIMEOUT_S = 5.0
"""Minimum timeout for the ledger after a change of hardware, even if the caller's deadline is earlier."""

UNDO_TIMEOUT_S = SETUP_TIMEOUT_S
"""Minimum timeout for undoing a set-up: a partly undone one makes the next attempt fail."""

OWNER_TIMEOUT_S = 1.0
"""Minimum timeout for the files that record which agent of the host owns a device."""

MayRelease = Callable[[LedgerEntry], bool]
"""Whether a claim may be released, by its current entry. Called with the lock of the claim, so that no prepare of it is
in progress here; with the locks of its devices too, where another agent may work on it, or its set-ups are undone."""

PhaseObserver = Callable[[str, float], None]
"""Called with a phase (lock, ledger, setup, cdi, undo, release) and its seconds, on the thread that prepares."""


class OtherDevicesError(PermanentError):
    """The claim was allocated again with other devices, and has not released the previous ones."""


class Preparer:
    """Prepares claims of one driver on one host; safe to use from several threads."""

    def __init__(
        self,
        driver: str,
        ledger: JournalLedger,
        specs: SpecDirectory,
        lookup: Lookup,
        *,
        node: str,
        host: Host,
        edit_providers: EditProviders,
        setups: Iterable[DeviceSetup] = (),
        metadata: MetadataDirectory | None = None,
        ownership: Ownership | None = None,
        device_locks: KeyedLocks | None = None,
        observe_phase: PhaseObserver = lambda phase, seconds: None,
    ) -> None:
        """A claim with a device in a pool of a node other than `node` is rejected.

        `device_locks` are shared by all agents on the ledger; None if there is only this one.
        """
        self.driver = driver
        self._ledger = ledger
        self._devices = LocalDevices(node, lookup, host)
        self._files = ClaimFiles(driver, specs, self._devices, edit_providers, metadata)
        self._setups: Mapping[Kind, DeviceSetup] = {setup.kind: setup for setup in setups}
        self._ownership = ownership or NoOwnership()
        self._observe_phase = observe_phase
        self.claim_locks = KeyedLocks()
        self.device_locks = device_locks or KeyedLocks()
        self.recovery = ClaimRecovery(
            ledger,
            self._files,
            self._setups,
            self._ownership,
            claim_locks=self.claim_locks,
            device_locks=self.device_locks,
            undo=self._undo,
            rebuild=lambda entry, deadline: self._rebuild(entry, self._record(entry), deadline)[1],
        )
        """Repairs the claims of earlier agents, at the start and at intervals."""

    def prepare(self, claim: Mapping[str, Any], deadline: Deadline | None = None) -> list[ClaimDevice]:
        """Prepare an allocated ResourceClaim (the API's JSON); returns its devices of this driver with their CDI ids.

        A repeat returns the same result, after the spec and the device nodes were checked and repaired; if
        the claim was allocated again with the same devices, it is prepared again for its current request.

        A claim that was prepared ahead is adopted: its set-ups are checked, and not repeated.

        Raises:
            RetryableError: The same claim may succeed later.
            PermanentError: The claim cannot succeed until it is changed.
        """
        return self._prepare(claim, deadline, ahead=False)

    def prepare_ahead(self, claim: Mapping[str, Any], deadline: Deadline | None = None) -> list[ClaimDevice]:
        """Prepare an allocated claim before its pod is bound, as `prepare` does, so that `prepare` adopts it.

        A claim that the kubelet has requested already is checked and stays the kubelet's.
        """
        return self._prepare(claim, deadline, ahead=True)

    def check(self, claim: Mapping[str, Any]) -> None:
        """Check the allocation and the configuration of a claim, and change nothing.

        Raises:
            RetryableError: A device is not on this host now.
            PermanentError: The claim cannot succeed until it is changed.
        """
        allocation = allocations.read(claim, self.driver)
        devices = self._devices.of(allocation)
        self._devices.check_pools(allocation)
        plan(allocation, devices, self._setups)

    def _prepare(self, claim: Mapping[str, Any], deadline: Deadline | None, *, ahead: bool) -> list[ClaimDevice]:
        allocation = allocations.read(claim, self.driver)
        if not allocation.devices:
            return []
        deadline = deadline or Deadline.of(CALL_TIMEOUT_S)
        start = time.perf_counter()
        purpose = str(allocation)
        with (
            self.claim_locks.hold([allocation.uid], deadline, purpose),
            self.device_locks.hold(lock_names(allocation.devices), deadline, purpose),
        ):
            self._observe_phase("lock", time.perf_counter() - start)
            entry = self._ledger.get(allocation.uid)
            if entry is None:
                # State of this process's last lease; the lease that starts the claim reads it again.
                try:
                    return self._prepare_new(allocation, deadline, ahead=ahead)
                except _AlreadyStartedError:
                    pass
            if entry is None or self._ledger.is_shared:
                entry = self._entry(allocation.uid, deadline)
            if entry is not None and _is_obsolete(entry, allocation):
                entry = self._undo_obsolete(entry, allocation, deadline, purpose)
            if entry is None:
                return self._prepare_new(allocation, deadline, ahead=ahead)
            return self._prepare_again(entry, allocation, deadline, ahead=ahead)

    def unprepare(self, uid: str, deadline: Deadline | None = None) -> bool:
        """Undo the preparation of a claim and free its devices. False if the claim was not prepared.

        Raises:
            RetryableError: The disk or a vendor's library failed. The claim still holds its devices.
        """
        deadline = deadline or Deadline.of(CALL_TIMEOUT_S)
        with self.claim_locks.hold([check_uid(uid)], deadline, _releasing(uid)):
            return self._unprepare(uid, deadline, lambda entry: True) or self._remove_files(uid, deadline)

    def release_if(self, uid: str, may_release: MayRelease, deadline: Deadline | None = None) -> bool:
        """Undo a claim if `may_release` is true of its entry. False if it is not, or the claim was not prepared.

        Raises RetryableError as `unprepare` does, and the errors of `may_release`.
        """
        deadline = deadline or Deadline.of(CALL_TIMEOUT_S)
        with self.claim_locks.hold([check_uid(uid)], deadline, _releasing(uid)):
            return self._unprepare(uid, deadline, may_release)

    def _unprepare(self, uid: str, deadline: Deadline, may_release: MayRelease) -> bool:
        """Undo a claim while `may_release` is true of its entry; False if it has none. The caller has its lock."""
        # Within a lease: another agent may have prepared the claim with other devices since this one read it.
        entry = self._entry(uid, deadline)
        while entry is not None and may_release(entry):
            with self.device_locks.hold(lock_names(entry.devices), deadline, _releasing(uid)):
                if self._release(entry, deadline, may_release):
                    later(partial(log.info, "claim unprepared", extra={"claim": uid}))
                    return True
            deadline.check(f"claim {uid}")
            entry = self._entry(uid, deadline)
        return False

    def _entry(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
        """Read the current state of a claim, which another agent may have changed."""
        with self._ledger.lease(deadline):
            return self._ledger.get(uid)

    def _release(self, entry: LedgerEntry, deadline: Deadline, may_release: MayRelease) -> bool:
        """Roll back a claim. The caller has the locks of its devices. False if another agent has changed it since."""
        if records.has_setups(entry):
            # The set-up of an old record may belong to another claim by now.
            now = self._entry(entry.uid, deadline)
            if now is None or lock_names(now.devices) != lock_names(entry.devices) or not may_release(now):
                return False
            self._undo(now, deadline)
            return True
        # Another agent may have prepared the claim again, with the same record, before the devices were locked.
        if self._ledger.is_shared and not may_release(entry):
            return False
        with self._timed("undo"):
            self._files.remove(entry.uid)
        with self._timed("release"), self._ledger.lease(deadline.at_least(LEDGER_TIMEOUT_S)):
            # The lock of the claim excludes other threads, but not other agents.
            if self._ledger.is_shared and self._ledger.get(entry.uid) != entry:
                return False
            self._ledger.release(entry.uid)
        self._disown(entry, deadline)
        return True

    def _remove_files(self, uid: str, deadline: Deadline) -> bool:
        """Remove the files of a claim without ledger entry; within a lease, so that no other agent starts it."""
        with self._ledger.lease(deadline):
            if self._ledger.get(uid) is not None:
                raise RetryableError("was prepared by another agent in the meantime", where=f"claim {uid}")
            return self._files.remove(uid)

    def _prepare_new(self, allocation: ClaimAllocation, deadline: Deadline, *, ahead: bool) -> list[ClaimDevice]:
        """Prepare a claim without ledger entry; raises _AlreadyStartedError if it has one after all."""
        try:
            devices = self._devices.of(allocation)
            self._devices.check_pools(allocation)
            owned = [devices[item.pool, item.device] for item in allocation.devices if not item.admin_access]
            self._devices.check_undivided(owned)
            self._devices.check_unused(owned)
            steps = plan(allocation, devices, self._setups)
            record = records.of_allocation(allocation, steps, ahead=ahead)
            # Without set-ups, an unusable device is detected before anything is written.
            spec = None if steps else self._files.build(allocation, record, {})
        except AgentError:
            if self._is_known(allocation.uid, deadline):
                raise _AlreadyStartedError(allocation) from None  # this error may not concern the prepared claim
            raise
        held = records.held_devices(allocation, devices)
        entry = LedgerEntry(
            allocation.uid,
            allocation.namespace,
            allocation.name,
            held,
            STARTED,
            msgspec.to_builtins(record),
            wall_now().timestamp(),
        )
        if spec is not None:
            record = _with_ids(record, spec)
        with self._timed("ledger"):
            self._start(entry, owned, None if spec is None else record, deadline)
        try:
            if spec is None:
                with self._timed("setup"):
                    record, edits = run(allocation.uid, steps, record, deadline)
                spec = self._files.build(allocation, record, edits)
                record = _with_ids(record, spec)
                with self._timed("ledger"), self._ledger.lease(deadline.at_least(LEDGER_TIMEOUT_S)):
                    self._ledger.complete(allocation.uid, msgspec.to_builtins(record))
            with self._timed("cdi"):
                self._files.write_new(allocation, record, spec)
        except Exception:
            self._undo_after_failure(entry)
            raise
        fields: dict[str, Any] = {"claim": allocation.uid, "devices": [item.device for item in record.devices]}
        if ahead:
            fields["ahead"] = True
        if missing := list(dict.fromkeys(note for notes in spec.notes for note in notes)):
            fields["missing"] = missing
        later(partial(log.info, "claim prepared", extra=fields))
        return _result(record, spec)

    def _start(
        self, entry: LedgerEntry, owned: Sequence[Device], completed: ClaimRecord | None, deadline: Deadline
    ) -> None:
        """Record the devices in the ledger and on the host. Without set-ups, complete the claim with the same sync."""
        try:
            self._record_start(entry, owned, completed, deadline)
        except DeviceHeldError:
            undo = partial(self._undo, deadline=deadline)
            if not undo_abandoned(entry, self._ledger, self.claim_locks, self.device_locks, undo, deadline):
                raise
            self._record_start(entry, owned, completed, deadline)

    def _record_start(
        self, entry: LedgerEntry, owned: Sequence[Device], completed: ClaimRecord | None, deadline: Deadline
    ) -> None:
        started = False
        try:
            with self._ownership.acquire(entry.uid, owned, deadline) as unlock, self._ledger.lease(deadline):
                if self._ledger.get(entry.uid) is not None:
                    raise _AlreadyStartedError(entry)
                # Another agent may have released the claim since.
                deadline.check(entry.with_uid)
                self._ledger.start(entry, durable=completed is None)
                started = True
                unlock()
                if completed is not None:
                    self._ledger.complete(entry.uid, msgspec.to_builtins(completed))
        except Exception as error:
            if started:
                self._undo_after_failure(entry)
            elif isinstance(error, AgentError) and self._is_known(entry.uid, deadline):
                raise _AlreadyStartedError(entry) from None  # this error may not concern the prepared claim
            raise

    def _is_known(self, uid: str, deadline: Deadline) -> bool:
        """Return whether another agent has started the claim since this process read the ledger."""
        try:
            return self._entry(uid, deadline) is not None
        except RetryableError:
            return False

    def _undo_obsolete(
        self, entry: LedgerEntry, allocation: ClaimAllocation, deadline: Deadline, purpose: str
    ) -> LedgerEntry | None:
        """Undo what no container uses and this allocation cannot adopt. Return an entry that is not obsolete now.

        Raises LockedError if another agent works on it with previously allocated devices. Their locks are acquired
        without waiting, because the caller has the locks of the current devices.
        """
        own_locks = lock_names(allocation.devices)
        before = lock_names(entry.devices) - own_locks
        with self.device_locks.hold(before, Deadline.of(0), purpose):
            now = self._entry(entry.uid, deadline) if before else entry
            if now is None or not _is_obsolete(now, allocation):
                return now
            if not lock_names(now.devices) <= own_locks | before:
                raise _AlreadyStartedError(entry)
            self._undo(now, deadline)
        return None

    def _prepare_again(
        self, entry: LedgerEntry, allocation: ClaimAllocation, deadline: Deadline, *, ahead: bool
    ) -> list[ClaimDevice]:
        if not records.same_devices(entry, allocation):
            held = ", ".join(device.device for device in entry.devices if device.request)
            raise OtherDevicesError(
                f"is prepared with other devices ({held})", where=str(allocation), hint="unprepare it first"
            )
        recorded = self._record(entry)
        if not records.same_request(recorded, allocation):
            # Validated before any change, so that the claim stays unchanged on an error.
            plan(allocation, self._devices.of(allocation), self._setups)
            log.info("claim was allocated again, and is prepared again", extra={"claim": entry.uid})
            self._undo(entry, deadline)
            return self._prepare_new(allocation, deadline, ahead=ahead)
        spec, repaired = self._rebuild(entry, recorded, deadline, adopt=not ahead)
        if repaired:
            log.warning(
                "CDI spec or metadata was missing or changed, and was written again", extra={"claim": entry.uid}
            )
        return _result(_with_ids(recorded, spec), spec)

    def _rebuild(
        self, entry: LedgerEntry, recorded: ClaimRecord, deadline: Deadline, *, adopt: bool = False
    ) -> tuple[ClaimSpec, bool]:
        """Check and repair the set-ups and files of a completed claim; True if a file was written.

        `adopt`: the kubelet has requested the claim, so it is not released as one that was prepared ahead.
        """
        # The owner files may not have it: after a reboot, for a device that was missing when the agent started.
        owned = [self._devices.find(item.pool, item.device) for item in entry.devices if _is_owned(item)]
        with self._ownership.acquire(entry.uid, owned, deadline):
            pass
        record, edits = ensure(entry, recorded, self._setups, self._devices.find, deadline)
        if adopt and record.ahead:
            record = msgspec.structs.replace(record, ahead=False)
        if record != recorded:
            # Before the spec: undoing the claim needs the record of its set-ups.
            with self._ledger.lease(deadline.at_least(LEDGER_TIMEOUT_S)):
                self._ledger.complete(entry.uid, msgspec.to_builtins(record))
        spec = self._files.build(entry, record, edits)
        with self._timed("cdi"):
            return spec, self._files.ensure(entry, record, spec)

    def _timed(self, phase: str) -> AbstractContextManager[None]:
        return _Timed(self._observe_phase, phase)

    def _undo(self, entry: LedgerEntry, deadline: Deadline) -> None:
        with self._timed("undo"):
            self._files.remove(entry.uid)
            undo(entry, self._setups, deadline.at_least(UNDO_TIMEOUT_S))
        with self._timed("release"), self._ledger.lease(deadline.at_least(LEDGER_TIMEOUT_S)):
            self._ledger.release(entry.uid)
        self._disown(entry, deadline)

    def _disown(self, entry: LedgerEntry, deadline: Deadline) -> None:
        # Not from cached state: another agent may have prepared the claim since, with other devices.
        found = [self._devices.lookup(item.pool, item.device) for item in entry.devices if _is_owned(item)]
        devices = [device for device in found if device is not None]
        self._ownership.release(
            entry.uid, deadline.at_least(OWNER_TIMEOUT_S), devices if len(devices) == len(found) else None
        )

    def _undo_after_failure(self, entry: LedgerEntry) -> None:
        """Undo a failed prepare; errors are only logged."""
        deadline = Deadline.of(LEDGER_TIMEOUT_S)
        try:
            self._undo(self._entry(entry.uid, deadline) or entry, deadline)
        except Exception as error:  # the first error is reported; the next attempt or repair undoes it
            expected = isinstance(error, AgentError)
            log.warning(
                "failed prepare is not undone yet",
                extra={"claim": entry.uid, "reason": str(error)},
                exc_info=not expected,
            )

    def _record(self, entry: LedgerEntry) -> ClaimRecord:
        record = records.read(entry)
        if record is None or entry.state != COMPLETED:
            raise PermanentError(
                "was prepared by a newer agent, in a way that this one does not know",
                where=entry.with_uid,
                hint="unprepare it, or run the newer agent",
            )
        return record


def _releasing(uid: str) -> str:
    return f"releasing claim {uid}"


def _is_obsolete(entry: LedgerEntry, allocation: ClaimAllocation) -> bool:
    """Return whether an entry is a failed attempt, or was prepared ahead for other devices than the current ones."""
    return entry.state == STARTED or (not records.same_devices(entry, allocation) and records.is_ahead(entry))


def _is_owned(device: HeldDevice) -> bool:
    """Return whether a claim owns a device by this entry: not with admin access, nor twice for a partition."""
    return bool(device.request) and not device.admin_access


class _Timed:
    """Measures one phase. A class, because every request has several."""

    __slots__ = ("_observe_phase", "_phase", "_start")

    def __init__(self, observe_phase: PhaseObserver, phase: str) -> None:
        self._observe_phase = observe_phase
        self._phase = phase

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._observe_phase(self._phase, time.perf_counter() - self._start)


class _AlreadyStartedError(RetryableError):
    """Another agent started the claim after this process read the ledger."""

    def __init__(self, claim: ClaimRef) -> None:
        super().__init__("was started by another agent in the meantime", where=str(claim))


def _with_ids(record: ClaimRecord, spec: ClaimSpec) -> ClaimRecord:
    if tuple(item.cdi_device_ids for item in record.devices) == spec.ids:
        return record
    devices = zip(record.devices, spec.ids, strict=True)
    return msgspec.structs.replace(
        record, devices=tuple(msgspec.structs.replace(item, cdi_device_ids=ids) for item, ids in devices)
    )


def _result(record: ClaimRecord, spec: ClaimSpec) -> list[ClaimDevice]:
    return [msgspec.structs.replace(item, notes=notes) for item, notes in zip(record.devices, spec.notes, strict=True)]
