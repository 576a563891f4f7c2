"""Preparing and unpreparing one claim, in an order that a crash at any point leaves repairable.

Prepare: take the devices in the ledger → vendor set-up → CDI spec → complete in the ledger (the one sync) → answer.
Unprepare: remove the CDI spec → undo the set-up → release in the ledger. What a crash leaves is mended by `recovery`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dra_agent.cdi.claim import ClaimedDevice, ClaimSpec, compose
from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.model import ContainerEdits
from dra_agent.cdi.names import check_uid
from dra_agent.cdi.recipes import DeviceEdits, Recipes
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.inventory.device import Device
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.allocation import Allocation
from dra_agent.prepare.config import Kind, SetupStep, plan
from dra_agent.prepare.locks import NamedLocks
from dra_agent.prepare.ports import Entry, Ledger, Lookup
from dra_agent.prepare.record import ClaimRecord, DeviceRecord, SetupRecord
from dra_agent.prepare.recovery import look, recover
from dra_agent.prepare.result import PreparedDevice, RecoveryReport
from dra_agent.prepare.setup import VendorSetup
from dra_agent.prepare.undo import undo

log = logging.getLogger(__name__)

STARTED = "started"
COMPLETED = "completed"


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
    ) -> None:
        self.driver = driver
        self._ledger = ledger
        self._specs = specs
        self._lookup = lookup
        self._recipes = recipes
        self._setups: Mapping[Kind, VendorSetup] = {setup.kind: setup for setup in setups}
        # Two sets of locks, always taken in this order: a claim's own, then those of its devices.
        self._claims = NamedLocks()
        self._devices = NamedLocks()

    def prepare(self, claim: Mapping[str, Any]) -> list[PreparedDevice]:
        """Prepare an allocated ResourceClaim (the API's JSON) and give its devices of this driver with their CDI ids.

        Repeating it gives the same answer, after the spec and the device nodes have been looked at and mended.
        RetryableError: the same claim may succeed later; PermanentError: not before it is changed.
        """
        allocation = allocations.read(claim, self.driver)
        steps = plan(allocation, self._setups)
        if not allocation.devices:
            return []
        with self._claims.hold([allocation.uid]), self._devices.hold(_lock_names(allocation)):
            entry = self._ledger.get(allocation.uid)
            if entry is not None and entry.state == STARTED:
                self._undo(entry)  # an earlier try that could not be undone at the time
                entry = None
            if entry is None:
                return self._first_time(allocation, steps)
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
        with self._claims.hold([uid]):
            entry = self._ledger.get(uid)
            if entry is None:
                return self._specs.delete(uid)
            with self._devices.hold(f"{device.pool}/{device.device}" for device in entry.devices):
                self._undo(entry)
        log.info("claim unprepared", extra={"claim": uid})
        return True

    def recover(self) -> RecoveryReport:
        """Mend at start what a crash left; to be called once, with the inventory taken, before any claim comes."""
        return recover(self._ledger, self._specs, self._undo, self._rebuild)

    def mend(self) -> RecoveryReport:
        """Look at every prepared claim while the agent runs, and write again what others removed or changed.

        The kubelet asks only when it starts a pod: a spec that is lost while it is up would stay lost. Claims in work
        are waited for, one at a time.
        """
        return look(self._ledger.entries(), self._mend_one)

    def _mend_one(self, entry: Entry) -> bool | None:
        with self._claims.hold([entry.uid]), self._devices.hold(f"{d.pool}/{d.device}" for d in entry.devices):
            now = self._ledger.get(entry.uid)
            if now is None or now.state == STARTED:
                return None  # released meanwhile, or to be undone by the next try
            return self._rebuild(now)[1]

    def _first_time(self, allocation: Allocation, steps: tuple[SetupStep, ...]) -> list[PreparedDevice]:
        devices = {(item.pool, item.device): self._find(item.pool, item.device) for item in allocation.devices}
        record = records.of_allocation(allocation, steps)
        # Where nothing is set up, a device that cannot be used is found out before anything is written.
        spec = None if steps else self._compose(allocation, record, {})
        held = records.held_devices(allocation, devices)
        entry = Entry(allocation.uid, allocation.namespace, allocation.name, held, STARTED, msgspec.to_builtins(record))
        self._ledger.start(entry, durable=bool(steps))
        try:
            if spec is None:
                outcomes = [
                    step.setup.set_up(
                        allocation.uid,
                        [devices[item.pool, item.device] for item in step.devices],
                        step.parameters,
                        None,
                    )
                    for step in steps
                ]
                done = zip(record.setups, outcomes, strict=True)
                record = msgspec.structs.replace(
                    record, setups=tuple(_done(setup, outcome.record) for setup, outcome in done)
                )
                spec = self._compose(allocation, record, _merged(outcome.edits for outcome in outcomes))
            record = _with_ids(record, spec)
            self._specs.ensure(allocation.uid, spec.data)
            self._ledger.complete(allocation.uid, msgspec.to_builtins(record))
        except Exception:
            self._try_to_undo(entry)
            raise
        log.info("claim prepared", extra={"claim": allocation.uid, "devices": [item.device for item in record.devices]})
        for item, notes in zip(record.devices, spec.notes, strict=True):
            for note in notes:
                log.info("a container will miss something", extra={"device": item.device, "note": note})
        return _answer(record, spec)

    def _again(self, entry: Entry, allocation: Allocation) -> list[PreparedDevice]:
        if not records.same_devices(entry, allocation):
            held = ", ".join(device.device for device in entry.devices if device.request)
            raise PermanentError(
                f"is prepared with other devices ({held})", where=str(allocation), todo="unprepare it first"
            )
        spec, mended = self._rebuild(entry)
        if mended:
            log.warning("CDI spec was missing or changed, and was written again", extra={"claim": entry.uid})
        record = _with_ids(self._record(entry), spec)
        return _answer(record, spec)

    def _rebuild(self, entry: Entry) -> tuple[ClaimSpec, bool]:
        """Make a completed claim's spec be what it has to be now; True where it had to be written."""
        record = self._record(entry)
        edits: list[Mapping[str, ContainerEdits]] = []
        pools = {item.device: item.pool for item in record.devices}
        for step in record.setups:
            setup = self._setup(entry, step)
            parameters = {key: value for key, value in step.parameters.items() if key not in {"apiVersion", "kind"}}
            devices = [self._find(pools[name], name) for name in step.devices]
            outcome = setup.set_up(
                entry.uid, devices, msgspec.convert(parameters, setup.parameters), previous=step.record
            )
            edits.append(outcome.edits)
        claim = Allocation(entry.uid, entry.namespace, entry.name, (), ())
        spec = self._compose(claim, record, _merged(edits))
        return spec, self._specs.ensure(entry.uid, spec.data)

    def _undo(self, entry: Entry) -> None:
        undo(entry, self._ledger, self._specs, self._setups)

    def _try_to_undo(self, entry: Entry) -> None:
        try:
            self._undo(entry)
        except Exception as error:  # the first error is the one to report; the next try, or the next start, undoes it
            log.warning(
                "failed prepare is not undone yet", extra={"claim": entry.uid, "reason": str(error)}, exc_info=True
            )

    def _compose(self, claim: Allocation, record: ClaimRecord, extra: Mapping[str, ContainerEdits]) -> ClaimSpec:
        held = [self._claimed(item, extra.get(item.device)) for item in record.devices]
        return compose(self.driver, claim.uid, claim.namespace, claim.name, held)

    def _claimed(self, item: DeviceRecord, extra: ContainerEdits | None) -> ClaimedDevice:
        device = self._find(item.pool, item.device)
        edits = self._recipes.edits(device)
        if extra is not None:
            edits = DeviceEdits(edits.own.merged(extra), edits.common, edits.foreign_ids, edits.notes)
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

    def _setup(self, entry: Entry, step: SetupRecord) -> VendorSetup:
        setup = self._setups.get((step.api_version, step.kind))
        if setup is None:
            raise PermanentError(
                f"its set-up {step.kind!r} of {step.api_version!r} is not known to this agent",
                where=f"claim {entry.namespace}/{entry.name} ({entry.uid})",
                todo="run the agent with the settings that it was prepared with",
            )
        return setup


def _lock_names(allocation: Allocation) -> list[str]:
    return [f"{item.pool}/{item.device}" for item in allocation.devices]


def _done(setup: SetupRecord, record: Any) -> SetupRecord:
    return msgspec.structs.replace(setup, done=True, record=record)


def _merged(parts: Iterable[Mapping[str, ContainerEdits]]) -> dict[str, ContainerEdits]:
    merged: dict[str, ContainerEdits] = {}
    for part in parts:
        for device, edits in part.items():
            merged[device] = merged.get(device, ContainerEdits()).merged(edits)
    return merged


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
