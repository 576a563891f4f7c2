"""Preparing and unpreparing one claim, in an order that a crash at any point leaves repairable.

Prepare: take the devices in the ledger → vendor set-up → complete in the ledger (the one sync) → metadata files, where
wanted → CDI spec → answer. Unprepare: remove the CDI spec and the files → undo the set-up → release in the ledger. So a
spec is there only for a claim that the ledger has completed. What a crash leaves is repaired by `recovery`.

Locks, in the order in which they are taken: the claim's, its devices' (across processes where several agents share the
ledger), those of set-ups, and last a turn at the ledger, which is short and held for nothing else. Whoever has a
device's lock knows that nobody works at the claims that hold it: docs/ledger.md, "Several agents in turn".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec

from dra_agent.cdi.claim import ClaimSpec, SpecDevice, build_spec
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.names import check_uid
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.inventory.model import Device, pool_name
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.abandoned import lock_names, undo_abandoned
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.claim_metadata import ClaimMetadata, describe
from dra_agent.prepare.ledger_types import DeviceHeldError, HeldDevice, Ledger, LedgerEntry, Lookup
from dra_agent.prepare.locks import SETUP_TIMEOUT_S, KeyedLocks
from dra_agent.prepare.ownership import NoOwnership, Ownership
from dra_agent.prepare.plan import plan
from dra_agent.prepare.record import ClaimRecord, DeviceRecord
from dra_agent.prepare.recovery import Apart, directly, forget_others, remove_strangers, repair_all
from dra_agent.prepare.result import PreparedDevice, RecoveryReport
from dra_agent.prepare.setup import DeviceSetup, Kind
from dra_agent.prepare.setup_runner import ensure, run
from dra_agent.prepare.undo import remove_files, undo

log = logging.getLogger(__name__)

STARTED = "started"
COMPLETED = "completed"
CALL_TIMEOUT_S = 40.0
"""Seconds for a request whose caller says nothing; the kubelet waits 45."""
LEDGER_TIMEOUT_S = 5.0
"""Seconds that the ledger is waited for at least once hardware was changed, however little the caller has left."""

UNDO_TIMEOUT_S = SETUP_TIMEOUT_S
"""The same for a set-up that is undone: what stays half done is in the way of the next try."""

OWNER_TIMEOUT_S = 1.0
"""The same for the files that say which agent of the host owns a device."""

Took = Callable[[str, float], None]
"""Takes note of a phase and its seconds; called on the thread that prepares."""


class Preparer:
    """Prepares claims of one driver on one host; safe to use from several threads."""

    def __init__(
        self,
        driver: str,
        ledger: Ledger,
        specs: SpecDirectory,
        lookup: Lookup,
        *,
        node: str,
        recipes: EditProviders,
        setups: Iterable[DeviceSetup] = (),
        metadata: MetadataDirectory | None = None,
        ownership: Ownership | None = None,
        device_locks: KeyedLocks | None = None,
        took: Took = lambda phase, seconds: None,
    ) -> None:
        """`node` names the pools that are this host's; a claim of any other is refused.

        `took` is told how long the parts of preparing took: lock, ledger, setup, cdi.

        `device_locks` are those of all agents that share the ledger; left out, this one is alone.
        """
        self.driver = driver
        self._node = node
        self._ledger = ledger
        self._specs = specs
        self._lookup = lookup
        self._recipes = recipes
        self._setups: Mapping[Kind, DeviceSetup] = {setup.kind: setup for setup in setups}
        self._metadata = metadata
        self._ownership = ownership or NoOwnership()
        self._took = took
        self._claims = KeyedLocks()
        self._devices = device_locks or KeyedLocks()

    def prepare(self, claim: Mapping[str, Any], deadline: Deadline | None = None) -> list[PreparedDevice]:
        """Prepare an allocated ResourceClaim (the API's JSON) and give its devices of this driver with their CDI ids.

        Repeating it gives the same answer, after the spec and the device nodes have been looked at and mended; where
        the claim was allocated again with the same devices, it is prepared anew for what it asks now.
        RetryableError: the same claim may succeed later; PermanentError: not before it is changed.
        """
        allocation = allocations.read(claim, self.driver)
        if not allocation.devices:
            return []
        deadline = deadline or Deadline.of(CALL_TIMEOUT_S)
        began = time.perf_counter()
        purpose = str(allocation)
        with (
            self._claims.hold([allocation.uid], deadline, purpose),
            self._devices.hold(lock_names(allocation.devices), deadline, purpose),
        ):
            self._took("lock", time.perf_counter() - began)
            if self._ledger.get(allocation.uid) is None:
                # That is what this process read in its last turn; the one that starts the claim reads it again.
                try:
                    return self._first_time(allocation, deadline)
                except _KnownError:
                    pass
            entry = self._entry(allocation.uid, deadline)
            if entry is not None and entry.state == STARTED:
                entry = self._undo_begun(entry, allocation, deadline, purpose)
            if entry is None:
                return self._first_time(allocation, deadline)
            return self._again(entry, allocation, deadline)

    def prepare_many(self, claims: Sequence[Mapping[str, Any]]) -> dict[str, list[PreparedDevice] | AgentError]:
        """Prepare several claims; each uid gets its own answer or error, and no claim spoils another's."""
        answers: dict[str, list[PreparedDevice] | AgentError] = {}
        for claim in claims:
            metadata = claim.get("metadata")
            uid = str(metadata.get("uid", "")) if isinstance(metadata, Mapping) else ""
            try:
                answers[uid] = self.prepare(claim)
            except AgentError as error:
                log.warning("claim not prepared", extra={"claim": uid, "reason": str(error)})
                answers[uid] = error
            except Exception as error:  # a bug in one claim's path must not fail its neighbours
                log.exception("claim not prepared", extra={"claim": uid})
                answers[uid] = RetryableError(f"unexpected {type(error).__name__}: {error}", where=f"claim {uid}")
        return answers

    def unprepare(self, uid: str, deadline: Deadline | None = None) -> bool:
        """Undo what was prepared for a claim and free its devices; False, and no error, where there was nothing.

        RetryableError where the disk or a vendor's library refuses: the claim then still holds its devices.
        """
        check_uid(uid)
        deadline = deadline or Deadline.of(CALL_TIMEOUT_S)
        purpose = f"releasing claim {uid}"
        with self._claims.hold([uid], deadline, purpose):
            # In a turn: by another agent the claim may have been given other devices since this one read it.
            entry = self._entry(uid, deadline)
            while entry is not None:
                with self._devices.hold(lock_names(entry.devices), deadline, purpose):
                    if self._release(entry, deadline):
                        log.info("claim unprepared", extra={"claim": uid})
                        return True
                deadline.check(f"claim {uid}")
                entry = self._entry(uid, deadline)
            return self._remove_files(uid, deadline)

    def recover(self, apart: Apart = directly) -> RecoveryReport:
        """Repair what earlier agents left: claim by claim, while claims are served already.

        What is in work, here or in another agent, is passed over. `apart` makes each call, and may give up on one that
        does not come back.
        """
        report = self.repair(apart)
        removed: tuple[str, ...] = ()
        problems = list(report.problems)
        try:
            removed = apart("removing files of no claim", self._remove_strangers)
        except AgentError as error:
            problems.append(str(error))
        problems += forget_others(self._setups, lambda uid: self._entry(uid) is not None, apart)
        report = msgspec.structs.replace(report, removed=removed, problems=tuple(problems))
        log.info(
            "claims of an earlier run looked at",
            extra={name: len(getattr(report, name)) for name in report.__struct_fields__},
        )
        return report

    def repair(self, apart: Apart = directly) -> RecoveryReport:
        """Look at every claim while the agent runs: write again what others removed, undo what the dead have begun.

        The kubelet asks only when it starts a pod: a spec that is lost while it is up would stay lost. Claims in work
        are passed over.
        """
        with self._ledger.turn():
            entries = self._ledger.entries()
        return repair_all(entries, self._mend_one, apart)

    def _mend_one(self, uid: str) -> bool | None:
        at_once, purpose = Deadline.of(0), f"repair of claim {uid}"
        with self._claims.hold([uid], at_once, purpose):
            entry = self._entry(uid)
            if entry is None:
                return None  # released meanwhile
            devices = lock_names(entry.devices)
            with self._devices.hold(devices, at_once, purpose):
                now = self._entry(uid)
                if now is None or lock_names(now.devices) != devices:
                    return None
                deadline = Deadline.of(CALL_TIMEOUT_S)
                if now.state == STARTED:
                    self._undo(now, deadline)
                    return None
                return self._rebuild(now, deadline)[1]

    def _entry(self, uid: str, deadline: Deadline | None = None) -> LedgerEntry | None:
        """Read a claim as it is now: another agent's turn may have come before."""
        with self._ledger.turn(deadline):
            return self._ledger.get(uid)

    def _release(self, entry: LedgerEntry, deadline: Deadline) -> bool:
        """Undo a claim, whose devices' locks the caller has; False where another agent has changed it since."""
        if records.has_setups(entry):
            # What an old record says was set up may be another claim's by now.
            now = self._entry(entry.uid, deadline)
            if now is None or lock_names(now.devices) != lock_names(entry.devices):
                return False
            self._undo(now, deadline)
            return True
        remove_files(entry.uid, self._specs, self._metadata)
        with self._ledger.turn(deadline.at_least(LEDGER_TIMEOUT_S)):
            if self._ledger.get(entry.uid) != entry:
                return False
            self._ledger.release(entry.uid)
        self._disown(entry, deadline)
        return True

    def _remove_files(self, uid: str, deadline: Deadline) -> bool:
        """Remove the files of a claim that the ledger does not have; in a turn, so that nobody starts it meanwhile."""
        with self._ledger.turn(deadline):
            if self._ledger.get(uid) is not None:
                raise RetryableError("was prepared by another agent meanwhile", where=f"claim {uid}")
            return remove_files(uid, self._specs, self._metadata)

    def _remove_strangers(self) -> tuple[str, ...]:
        """Remove files of claims that hold nothing; in a turn, so that none of them is started meanwhile."""
        with self._ledger.turn():
            known = {entry.uid for entry in self._ledger.entries()}
            return remove_strangers(known, self._ownership.foreign_claims(), self._specs, self._metadata)

    def _first_time(self, allocation: ClaimAllocation, deadline: Deadline) -> list[PreparedDevice]:
        """Prepare a claim that the ledger does not have; _KnownError where it turns out to have it."""
        try:
            devices = self._found(allocation)
            self._check_pools(allocation, devices)
            steps = plan(allocation, devices, self._setups)
            record = records.of_allocation(allocation, steps)
            # Where nothing is set up, a device that cannot be used is found out before anything is written.
            spec = None if steps else self._compose(allocation, record, {})
        except AgentError:
            if self._entry(allocation.uid, deadline) is not None:
                raise _KnownError(allocation) from None  # what is wrong now need not matter to what is prepared
            raise
        held = records.held_devices(allocation, devices)
        entry = LedgerEntry(
            allocation.uid, allocation.namespace, allocation.name, held, STARTED, msgspec.to_builtins(record)
        )
        if spec is not None:
            record = _with_ids(record, spec)
        owned = [devices[item.pool, item.device] for item in allocation.devices if not item.admin_access]
        with self._timed("ledger"):
            self._start(entry, owned, None if spec is None else record, deadline)
        try:
            if spec is None:
                with self._timed("setup"):
                    record, edits = run(allocation.uid, steps, record, deadline)
                spec = self._compose(allocation, record, edits)
                record = _with_ids(record, spec)
                with self._timed("ledger"), self._ledger.turn(deadline.at_least(LEDGER_TIMEOUT_S)):
                    self._ledger.complete(allocation.uid, msgspec.to_builtins(record))
            self._write(allocation, record, spec)
        except Exception:
            self._try_to_undo(entry)
            raise
        told: dict[str, Any] = {"claim": allocation.uid, "devices": [item.device for item in record.devices]}
        if missing := list(dict.fromkeys(note for notes in spec.notes for note in notes)):
            told["missing"] = missing
        log.info("claim prepared", extra=told)
        return _answer(record, spec)

    def _start(
        self, entry: LedgerEntry, owned: Sequence[Device], completed: ClaimRecord | None, deadline: Deadline
    ) -> None:
        """Take the devices in the ledger and on the host; with nothing to set up, complete with the same sync."""
        try:
            self._record_start(entry, owned, completed, deadline)
        except DeviceHeldError:
            undo = partial(self._undo, deadline=deadline)
            if not undo_abandoned(entry, self._ledger, self._claims, self._devices, undo, deadline):
                raise
            self._record_start(entry, owned, completed, deadline)

    def _record_start(
        self, entry: LedgerEntry, owned: Sequence[Device], completed: ClaimRecord | None, deadline: Deadline
    ) -> None:
        started = False
        try:
            with self._ownership.acquire(entry.uid, owned, deadline) as unlock, self._ledger.turn(deadline):
                if self._ledger.get(entry.uid) is not None:
                    raise _KnownError(entry)
                # By now another agent may have answered the claim's release.
                deadline.check(f"claim {entry.namespace}/{entry.name} ({entry.uid})")
                self._ledger.start(entry, durable=completed is None)
                started = True
                unlock()
                if completed is not None:
                    self._ledger.complete(entry.uid, msgspec.to_builtins(completed))
        except Exception:
            if started:
                self._try_to_undo(entry)
            raise

    def _undo_begun(
        self, entry: LedgerEntry, allocation: ClaimAllocation, deadline: Deadline, purpose: str
    ) -> LedgerEntry | None:
        """Undo an earlier try that could not be undone at the time; give what the claim is if it is no such try.

        LockedError where another agent is in work on it, with devices that it was allocated before. The caller has the
        locks of the present ones, so those are tried and not waited for.
        """
        mine = lock_names(allocation.devices)
        before = lock_names(entry.devices) - mine
        with self._devices.hold(before, Deadline.of(0), purpose):
            now = self._entry(entry.uid, deadline) if before else entry
            if now is None or now.state != STARTED:
                return now
            if not lock_names(now.devices) <= mine | before:
                raise _KnownError(entry)
            self._undo(now, deadline)
        return None

    def _again(self, entry: LedgerEntry, allocation: ClaimAllocation, deadline: Deadline) -> list[PreparedDevice]:
        if not records.same_devices(entry, allocation):
            held = ", ".join(device.device for device in entry.devices if device.request)
            raise PermanentError(
                f"is prepared with other devices ({held})", where=str(allocation), hint="unprepare it first"
            )
        recorded = self._record(entry)
        if not records.same_request(recorded, allocation):
            # Refused while the claim is as it was, and not half way to what cannot be.
            plan(allocation, self._found(allocation), self._setups)
            log.info("claim was allocated again, and is prepared anew", extra={"claim": entry.uid})
            self._undo(entry, deadline)
            return self._first_time(allocation, deadline)
        spec, mended = self._rebuild(entry, deadline)
        if mended:
            log.warning(
                "CDI spec or metadata was missing or changed, and was written again", extra={"claim": entry.uid}
            )
        return _answer(_with_ids(recorded, spec), spec)

    def _rebuild(self, entry: LedgerEntry, deadline: Deadline) -> tuple[ClaimSpec, bool]:
        """Make a completed claim's spec be what it has to be now; True where it had to be written."""
        recorded = self._record(entry)
        # It may own nothing: after a reboot, of a device that was not there when the agent started.
        owned = [self._find(item.pool, item.device) for item in entry.devices if _is_owned(item)]
        with self._ownership.acquire(entry.uid, owned, deadline):
            pass
        record, edits = ensure(entry, recorded, self._setups, self._find, deadline)
        if record != recorded:
            # Before the spec: who undoes the claim must know what was made for it.
            with self._ledger.turn(deadline.at_least(LEDGER_TIMEOUT_S)):
                self._ledger.complete(entry.uid, msgspec.to_builtins(record))
        claim = ClaimAllocation(entry.uid, entry.namespace, entry.name, (), ())
        spec = self._compose(claim, record, edits)
        return spec, self._write(claim, record, spec)

    def _found(self, allocation: ClaimAllocation) -> dict[tuple[str, str], Device]:
        return {(item.pool, item.device): self._find(item.pool, item.device) for item in allocation.devices}

    def _check_pools(self, allocation: ClaimAllocation, devices: Mapping[tuple[str, str], Device]) -> None:
        """Refuse a device of another node: names come from PCI addresses, and nodes of one model have the same."""
        for item in allocation.devices:
            if item.pool.rpartition("/")[0] != self._node:
                own = pool_name(self._node, devices[item.pool, item.device].family)
                raise PermanentError(
                    f"device {item.device} of pool {item.pool} is not of this node, whose pool is {own}",
                    where=str(allocation),
                    hint="delete the claim and let it be allocated again",
                )

    def _write(self, claim: ClaimAllocation, record: ClaimRecord, spec: ClaimSpec) -> bool:
        """Put in place what containers are given, files before the spec that mounts them; True where any was not."""
        with self._timed("cdi"):
            described = self._describe(claim, record)
            written = described is not None and described.write()
            return self._specs.ensure(claim.uid, spec.data) or written

    def _timed(self, phase: str) -> AbstractContextManager[None]:
        return _Timed(self._took, phase)

    def _describe(self, claim: ClaimAllocation, record: ClaimRecord) -> ClaimMetadata | None:
        if self._metadata is None or not self._metadata.enabled:
            return None
        return describe(self._metadata, claim, record, self._find)

    def _undo(self, entry: LedgerEntry, deadline: Deadline) -> None:
        undo(entry, self._specs, self._setups, self._metadata, deadline.at_least(UNDO_TIMEOUT_S))
        with self._ledger.turn(deadline.at_least(LEDGER_TIMEOUT_S)):
            self._ledger.release(entry.uid)
        self._disown(entry, deadline)

    def _disown(self, entry: LedgerEntry, deadline: Deadline) -> None:
        # Not by what this process remembers: another agent may have prepared the claim since, with other devices.
        found = [self._lookup(item.pool, item.device) for item in entry.devices if _is_owned(item)]
        devices = [device for device in found if device is not None]
        self._ownership.release(
            entry.uid, deadline.at_least(OWNER_TIMEOUT_S), devices if len(devices) == len(found) else None
        )

    def _try_to_undo(self, entry: LedgerEntry) -> None:
        """Undo a prepare that failed, as far as the ledger knows it."""
        deadline = Deadline.of(LEDGER_TIMEOUT_S)
        try:
            self._undo(self._entry(entry.uid, deadline) or entry, deadline)
        except Exception as error:  # the first error is the one to report; the next try, or a repair, undoes it
            expected = isinstance(error, AgentError)
            log.warning(
                "failed prepare is not undone yet",
                extra={"claim": entry.uid, "reason": str(error)},
                exc_info=not expected,
            )

    def _compose(self, claim: ClaimAllocation, record: ClaimRecord, extra: Mapping[str, ContainerEdits]) -> ClaimSpec:
        held = [self._claimed(item, extra.get(item.key)) for item in record.devices]
        if (described := self._describe(claim, record)) is not None:
            held = described.mounted(held)
        return build_spec(self.driver, claim.uid, claim.namespace, claim.name, held)

    def _claimed(self, item: DeviceRecord, extra: ContainerEdits | None) -> SpecDevice:
        device = self._find(item.pool, item.device)
        edits = self._recipes.edits(device)
        if extra is not None:
            edits = edits.with_setup(extra)
        return SpecDevice(device, edits, item.requests, item.share_id, item.consumed_capacity)

    def _find(self, pool: str, name: str) -> Device:
        device = self._lookup(pool, name)
        if device is None:
            raise RetryableError(
                "is not on this host now",
                where=f"device {name} of pool {pool}",
                hint="see `dra-agent devices` for what is, and `dra-agent doctor` for what is wrong",
            )
        return device

    def _record(self, entry: LedgerEntry) -> ClaimRecord:
        record = records.read(entry)
        if record is None or entry.state != COMPLETED:
            raise PermanentError(
                "was prepared by a newer agent, in a way that this one does not know",
                where=f"claim {entry.namespace}/{entry.name} ({entry.uid})",
                hint="unprepare it, or run the newer agent",
            )
        return record


def _is_owned(device: HeldDevice) -> bool:
    """Tell whether a claim owns a device by this entry: not one that it only watches, nor twice for a partition."""
    return bool(device.request) and not device.admin_access


class _Timed:
    """Measures one phase of preparing."""

    __slots__ = ("_began", "_phase", "_took")

    def __init__(self, took: Took, phase: str) -> None:
        self._took = took
        self._phase = phase

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._took(self._phase, time.perf_counter() - self._began)


class _KnownError(RetryableError):
    """The ledger has a claim that this process took for one that it does not have: another agent is serving it."""

    def __init__(self, claim: ClaimAllocation | LedgerEntry) -> None:
        super().__init__("was begun by another agent meanwhile", where=f"claim {claim.namespace}/{claim.name}")


def _with_ids(record: ClaimRecord, spec: ClaimSpec) -> ClaimRecord:
    devices = zip(record.devices, spec.ids, strict=True)
    return msgspec.structs.replace(
        record, devices=tuple(msgspec.structs.replace(item, cdi_device_ids=ids) for item, ids in devices)
    )


def _answer(record: ClaimRecord, spec: ClaimSpec) -> list[PreparedDevice]:
    return [
        PreparedDevice(item.requests, item.pool, item.device, item.cdi_device_ids, item.share_id, notes)
        for item, notes in zip(record.devices, spec.notes, strict=True)
    ]
