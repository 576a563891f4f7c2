"""Preparing and unpreparing one claim, in an order that a crash at any point leaves repairable.

Prepare: take the devices in the ledger → vendor set-up → metadata files, where wanted → CDI spec → complete in the
ledger (the one sync) → answer. Unprepare: remove the CDI spec and the files → undo the set-up → release in the ledger.
What a crash leaves is mended by `recovery`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from dra_agent.cdi.claim import ClaimedDevice, ClaimSpec, compose
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.metadata_files import MetadataDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.names import check_uid
from dra_agent.cdi.recipes import Recipes
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.inventory.device import Device
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.allocation import Allocation
from dra_agent.prepare.describe import Description, describe
from dra_agent.prepare.locks import NamedLocks
from dra_agent.prepare.ownership import NoOwnership, Ownership
from dra_agent.prepare.plan import plan
from dra_agent.prepare.ports import Entry, Ledger, Lookup
from dra_agent.prepare.record import ClaimRecord, DeviceRecord
from dra_agent.prepare.recovery import look, recover
from dra_agent.prepare.result import PreparedDevice, RecoveryReport
from dra_agent.prepare.setup import Kind, Remembering, VendorSetup
from dra_agent.prepare.steps import repeat, run
from dra_agent.prepare.undo import undo

log = logging.getLogger(__name__)

STARTED = "started"
COMPLETED = "completed"

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
        recipes: Recipes,
        setups: Iterable[VendorSetup] = (),
        metadata: MetadataDirectory | None = None,
        ownership: Ownership | None = None,
        took: Took = lambda phase, seconds: None,
    ) -> None:
        """`took` is told how long the parts of preparing took: lock, ledger, setup, cdi."""
        self.driver = driver
        self._ledger = ledger
        self._specs = specs
        self._lookup = lookup
        self._recipes = recipes
        self._setups: Mapping[Kind, VendorSetup] = {setup.kind: setup for setup in setups}
        self._metadata = metadata
        self._ownership = ownership or NoOwnership()
        self._took = took
        # Two sets of locks, always taken in this order: a claim's own, then those of its devices.
        self._claims = NamedLocks()
        self._devices = NamedLocks()

    def prepare(self, claim: Mapping[str, Any]) -> list[PreparedDevice]:
        """Prepare an allocated ResourceClaim (the API's JSON) and give its devices of this driver with their CDI ids.

        Repeating it gives the same answer, after the spec and the device nodes have been looked at and mended.
        RetryableError: the same claim may succeed later; PermanentError: not before it is changed.
        """
        allocation = allocations.read(claim, self.driver)
        if not allocation.devices:
            return []
        began = time.perf_counter()
        with self._turn(), self._claims.hold([allocation.uid]), self._devices.hold(_lock_names(allocation)):
            self._took("lock", time.perf_counter() - began)
            entry = self._ledger.get(allocation.uid)
            if entry is not None and entry.state == STARTED:
                self._undo(entry)  # an earlier try that could not be undone at the time
                entry = None
            if entry is None:
                return self._first_time(allocation)
            return self._again(entry, allocation)

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

    def unprepare(self, uid: str) -> bool:
        """Undo what was prepared for a claim and free its devices; False, and no error, where there was nothing.

        RetryableError where the disk or a vendor's library refuses: the claim then still holds its devices.
        """
        check_uid(uid)
        with self._turn(), self._claims.hold([uid]):
            entry = self._ledger.get(uid)
            if entry is None:
                known = self._specs.delete(uid)
                return (self._metadata is not None and self._metadata.delete(uid)) or known
            with self._devices.hold(f"{device.pool}/{device.device}" for device in entry.devices):
                self._undo(entry)
        log.info("claim unprepared", extra={"claim": uid})
        return True

    def recover(self) -> RecoveryReport:
        """Mend at start what a crash left; to be called once, with the inventory taken, before any claim comes."""
        with self._ledger.turn(lambda: None):
            return self._recover()

    def mend(self) -> RecoveryReport:
        """Look at every prepared claim while the agent runs, and write again what others removed or changed.

        The kubelet asks only when it starts a pod: a spec that is lost while it is up would stay lost. Claims in work
        are waited for, one at a time.
        """
        return look(self._ledger.entries(), self._mend_one)

    def _turn(self) -> AbstractContextManager[None]:
        """A turn comes before every lock: whoever holds a lock must never wait for one."""
        return self._ledger.turn(self._recover)

    def _recover(self) -> RecoveryReport:
        report = recover(
            self._ledger,
            self._specs,
            self._undo,
            self._rebuild,
            self._metadata,
            foreign=self._ownership.foreign_claims(),
        )
        return msgspec.structs.replace(report, problems=(*report.problems, *self._forget_others()))

    def _forget_others(self) -> list[str]:
        """Have set-ups undo what they did for claims that nobody knows any more: the ledger was lost."""
        known = {entry.uid for entry in self._ledger.entries()}
        problems = []
        for setup in self._setups.values():
            if isinstance(setup, Remembering):
                try:
                    setup.keep_only(known)
                except AgentError as error:
                    problems.append(str(error))
        return problems

    def _mend_one(self, entry: Entry) -> bool | None:
        devices = {f"{device.pool}/{device.device}" for device in entry.devices}
        with self._turn(), self._claims.hold([entry.uid]), self._devices.hold(devices):
            now = self._ledger.get(entry.uid)
            if now is None or now.state == STARTED:
                return None  # released meanwhile, or to be undone by the next try
            return self._rebuild(now)[1]

    def _first_time(self, allocation: Allocation) -> list[PreparedDevice]:
        devices = {(item.pool, item.device): self._find(item.pool, item.device) for item in allocation.devices}
        steps = plan(allocation, devices, self._setups)
        record = records.of_allocation(allocation, steps)
        # Where nothing is set up, a device that cannot be used is found out before anything is written.
        spec = None if steps else self._compose(allocation, record, {})
        held = records.held_devices(allocation, devices)
        entry = Entry(allocation.uid, allocation.namespace, allocation.name, held, STARTED, msgspec.to_builtins(record))
        with self._timed("ledger"):
            self._ledger.start(entry, durable=bool(steps))
        try:
            self._ownership.acquire(
                entry.uid, [devices[item.pool, item.device] for item in allocation.devices if not item.admin_access]
            )
            if spec is None:
                with self._timed("setup"):
                    record, edits = run(allocation.uid, steps, record)
                spec = self._compose(allocation, record, edits)
            record = _with_ids(record, spec)
            self._write(allocation, record, spec)
            with self._timed("ledger"):
                self._ledger.complete(allocation.uid, msgspec.to_builtins(record))
        except Exception:
            self._try_to_undo(entry)
            raise
        told: dict[str, Any] = {"claim": allocation.uid, "devices": [item.device for item in record.devices]}
        if missing := list(dict.fromkeys(note for notes in spec.notes for note in notes)):
            told["missing"] = missing
        log.info("claim prepared", extra=told)
        return _answer(record, spec)

    def _again(self, entry: Entry, allocation: Allocation) -> list[PreparedDevice]:
        if not records.same_devices(entry, allocation):
            held = ", ".join(device.device for device in entry.devices if device.request)
            raise PermanentError(
                f"is prepared with other devices ({held})", where=str(allocation), todo="unprepare it first"
            )
        spec, mended = self._rebuild(entry)
        if mended:
            log.warning(
                "CDI spec or metadata was missing or changed, and was written again", extra={"claim": entry.uid}
            )
        record = _with_ids(self._record(entry), spec)
        return _answer(record, spec)

    def _rebuild(self, entry: Entry) -> tuple[ClaimSpec, bool]:
        """Make a completed claim's spec be what it has to be now; True where it had to be written."""
        recorded = self._record(entry)
        record, edits = repeat(entry, recorded, self._setups, self._find)
        if record != recorded:
            # Before the spec: who undoes the claim must know what was made for it.
            self._ledger.complete(entry.uid, msgspec.to_builtins(record))
        claim = Allocation(entry.uid, entry.namespace, entry.name, (), ())
        spec = self._compose(claim, record, edits)
        return spec, self._write(claim, record, spec)

    def _write(self, claim: Allocation, record: ClaimRecord, spec: ClaimSpec) -> bool:
        """Put in place what containers are given, files before the spec that mounts them; True where any was not."""
        with self._timed("cdi"):
            described = self._describe(claim, record)
            written = described is not None and described.write()
            return self._specs.ensure(claim.uid, spec.data) or written

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._took(phase, time.perf_counter() - began)

    def _describe(self, claim: Allocation, record: ClaimRecord) -> Description | None:
        if self._metadata is None or not self._metadata.enabled:
            return None
        return describe(self._metadata, claim, record, self._find)

    def _undo(self, entry: Entry) -> None:
        undo(entry, self._ledger, self._specs, self._setups, self._metadata)
        self._ownership.release(entry.uid)

    def _try_to_undo(self, entry: Entry) -> None:
        try:
            self._undo(entry)
        except Exception as error:  # the first error is the one to report; the next try, or the next start, undoes it
            log.warning(
                "failed prepare is not undone yet", extra={"claim": entry.uid, "reason": str(error)}, exc_info=True
            )

    def _compose(self, claim: Allocation, record: ClaimRecord, extra: Mapping[str, ContainerEdits]) -> ClaimSpec:
        held = [self._claimed(item, extra.get(item.key)) for item in record.devices]
        if (described := self._describe(claim, record)) is not None:
            held = described.mounted(held)
        return compose(self.driver, claim.uid, claim.namespace, claim.name, held)

    def _claimed(self, item: DeviceRecord, extra: ContainerEdits | None) -> ClaimedDevice:
        device = self._find(item.pool, item.device)
        edits = self._recipes.edits(device)
        if extra is not None:
            edits = edits.with_setup(extra)
        return ClaimedDevice(device, edits, item.requests, item.share_id, item.consumed_capacity)

    def _find(self, pool: str, name: str) -> Device:
        device = self._lookup(pool, name)
        if device is None:
            raise RetryableError(
                "is not on this host now",
                where=f"device {name} of pool {pool}",
                todo="see `dra-agent devices` for what is, and `dra-agent doctor` for what is wrong",
            )
        return device

    def _record(self, entry: Entry) -> ClaimRecord:
        record = records.read(entry)
        if record is None or entry.state != COMPLETED:
            raise PermanentError(
                "was prepared by a newer agent, in a way that this one does not know",
                where=f"claim {entry.namespace}/{entry.name} ({entry.uid})",
                todo="unprepare it, or run the newer agent",
            )
        return record


def _lock_names(allocation: Allocation) -> list[str]:
    return [f"{item.pool}/{item.device}" for item in allocation.devices]


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
