"""The MIG instances of one GPU: creates and destroys instances of claims, and never changes other instances.

Every step is recorded durably before it is made, so the next operation on the GPU completes or undoes it after a crash.
One operation at a time for each GPU; GPUs are independent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from dra_agent import atomic_file
from dra_agent.deadline import Deadline
from dra_agent.device_setup.mig.driver import ComputeInstance, GpuInstance, InUseError, MigDriver, NoRoomError
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.mig_ownership import FOLDER, OwnedInstance, OwnershipRecord, note_path, read_note
from dra_agent.inventory.nvidia.nvml_client import GpuLostError, NoPermissionError, UnknownGpuError
from dra_agent.inventory.nvidia.profiles import Placement
from dra_agent.prepare.locks import KeyedLocks


class OwnershipStore:
    """The ownership records of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, address: str) -> OwnershipRecord:
        """Return the record of a GPU; RetryableError if it cannot be read."""
        return read_note(self._host, address)

    def write(self, record: OwnershipRecord) -> None:
        """Replace the record of a GPU; durable on return. RetryableError if the disk cannot be written."""
        if self._host.state is None:
            raise RetryableError("has no state directory for the records of MIG instances", where="this host")
        path = note_path(self._host.state, record.gpu)
        try:
            if not record.instances:
                atomic_file.remove(path, durable=True)
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(record), durable=True)
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(path), hint="make room for the state directory"
            ) from error

    def gpus(self) -> list[str]:
        """Return the PCI addresses of GPUs with records; raises RetryableError if the directory cannot be read."""
        if self._host.state is None:
            return []
        folder = self._host.state / FOLDER
        try:
            names = sorted(path.stem for path in folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetryableError(f"cannot be read: {error.strerror}", where=str(folder)) from error
        return [address for name in names if (address := _address(name)) is not None]


def _address(name: str) -> str | None:
    domain, *rest = name.split("-")
    return ":".join((domain, *rest)) if len(rest) == 2 else None


log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 20.0
"""Seconds that a claim waits for the lock of a GPU: the kubelet retries after 45."""
PRUNE_TIMEOUT_S = 120.0
"""Seconds to destroy instances of claims that are no longer in the ledger: several driver calls for each."""
RETRY_TIMEOUT_S = 5.0
"""Seconds for which a blocked step is retried."""
_RETRY_INTERVAL_S = 0.25
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """A partition that is requested for a claim."""

    device: str
    profile: int
    placement: Placement
    holder: str
    """The UID of the claim, and the key of the device in it."""
    compute_slices: int | None
    destroy_foreign: bool


@dataclass(frozen=True, slots=True)
class CreatedPartition:
    """An existing partition."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    capability_minors: tuple[int, ...]


class PartitionedGpu:
    """One GPU, by its PCI address; thread-safe."""

    def __init__(
        self,
        address: str,
        store: OwnershipStore,
        driver: Callable[[], AbstractContextManager[MigDriver]],
        locks: KeyedLocks | None = None,
    ) -> None:
        """`driver` is called for each operation; all agents on the host share `locks`."""
        self._address = address
        self._store = store
        self._driver = driver
        self._locks = locks or KeyedLocks()

    def make(self, request: PartitionRequest, deadline: Deadline) -> CreatedPartition:
        """Create a partition, or find the existing one. RetryableError names what blocks it."""
        with self._hold_lock(deadline), self._driver() as driver:
            if not driver.mode()[0]:
                _retry(lambda: driver.set_mode(True), deadline)
            record = self._store.read(self._address)
            instance = self._clear(driver, record, request, deadline)
            held = _with_holder(self._store.read(self._address), request)
            self._store.write(held)
            if instance is None:
                try:
                    instance = _retry(lambda: driver.make(request.profile, request.placement), deadline)
                except (NoRoomError, NoPermissionError, PermanentError):
                    # A rejected instance was not created: an instance in its place belongs to another program.
                    others = tuple(one for one in held.instances if one.device != request.device)
                    self._store.write(msgspec.structs.replace(held, instances=others))
                    raise
            compute = self._compute(driver, held, instance, request)
            return CreatedPartition(
                driver.uuid(compute), instance.id, compute.id, driver.capabilities(instance, compute)
            )

    def release(self, holder: str, deadline: Deadline) -> None:
        """Release the instances of a claim; destroy unused ones. RetryableError while they are in use."""
        with self._hold_lock(deadline):
            record = self._store.read(self._address)
            for one in record.instances:
                if holder not in (*one.holders, one.leaving):
                    continue
                others = tuple(name for name in one.holders if name != holder)
                remaining = msgspec.structs.replace(one, holders=others, leaving="" if others else holder)
                record = _replaced(record, one, remaining)
                self._store.write(record)
                if not others:
                    record = self._destroy_owned(record, remaining, deadline)

    def disable_mig(self, deadline: Deadline, *, destroy_foreign: bool) -> None:
        """Disable MIG mode, so the GPU can be used as a whole. RetryableError while an instance exists."""
        with self._hold_lock(deadline), self._driver() as driver:
            if not driver.mode()[0]:
                return
            record = self._store.read(self._address)
            for instance in driver.instances():
                self._remove(driver, record, instance, deadline, destroy_foreign=destroy_foreign)
            _retry(lambda: driver.set_mode(False), deadline)

    def prune(self, known: Callable[[str], bool]) -> None:
        """Release instances of holders that are not in the ledger; without a caller, it has its own deadline."""
        deadline = Deadline.of(PRUNE_TIMEOUT_S)
        with self._hold_lock(deadline):
            record = self._store.read(self._address)
            for one in record.instances:
                remaining = msgspec.structs.replace(one, holders=tuple(filter(known, one.holders)))
                if remaining != one:
                    record = _replaced(record, one, remaining)
                    self._store.write(record)
                if not remaining.holders and not (remaining.leaving and known(remaining.leaving)):
                    record = self._destroy_owned(record, remaining, deadline)

    def _destroy_owned(self, record: OwnershipRecord, one: OwnedInstance, deadline: Deadline) -> OwnershipRecord:
        """Destroy unused instances; return the record without them."""
        try:
            with self._driver() as driver:
                if driver.mode()[0]:
                    for instance in driver.instances():
                        if _owned(record, instance) == one:
                            _destroy(driver, instance, deadline)
        except (GpuLostError, UnknownGpuError) as error:
            # Such a GPU recovers only with a reset, and no instance exists after that.
            log.warning("MIG instance abandoned: its GPU is lost", extra={"device": one.device, "reason": str(error)})
        record = _replaced(record, one, None)
        self._store.write(record)
        return record

    def _clear(
        self, driver: MigDriver, record: OwnershipRecord, request: PartitionRequest, deadline: Deadline
    ) -> GpuInstance | None:
        """Find the existing instance, or clear its place; RetryableError for an instance that must not be destroyed."""
        existing = None
        for instance in driver.instances():
            if not instance.placement.overlaps(request.placement):
                continue
            owned = _owned(record, instance)
            if (
                owned is not None
                and owned.device == request.device
                and (owned.holders or owned.leaving == request.holder)
            ):
                existing = instance
            else:
                self._remove(driver, record, instance, deadline, destroy_foreign=request.destroy_foreign)
        return existing

    def _remove(
        self,
        driver: MigDriver,
        record: OwnershipRecord,
        instance: GpuInstance,
        deadline: Deadline,
        *,
        destroy_foreign: bool,
    ) -> None:
        where = f"GPU {self._address}"
        message = f"MIG instance {instance.id} (profile {instance.profile} at memory slice {instance.placement.start})"
        owned = _owned(record, instance)
        if owned is not None and owned.holders:
            claims = ", ".join(holder.partition("/")[0] for holder in owned.holders)
            raise RetryableError(
                f"{message} is in the way: claim {claims} holds it",
                where=where,
                hint="release that claim, or wait for it",
            )
        if owned is None and not destroy_foreign:
            raise RetryableError(
                f"{message} is in the way, and the agent did not create it",
                where=where,
                hint=f"destroy it (nvidia-smi mig -dci -gi {instance.id}, nvidia-smi mig -dgi -gi {instance.id}), or "
                'set foreign = "destroy" in [[inventory.partition]]',
            )
        _destroy(driver, instance, deadline)
        if owned is not None:
            self._store.write(_replaced(self._store.read(self._address), owned, None))

    def _compute(
        self, driver: MigDriver, record: OwnershipRecord, instance: GpuInstance, request: PartitionRequest
    ) -> ComputeInstance:
        compute_instances = driver.compute_instances(instance)
        if len(compute_instances) == 1 and request.compute_slices in (None, compute_instances[0].slices):
            return compute_instances[0]
        owned = _owned(record, instance)
        if compute_instances and owned is not None and owned.holders != (request.holder,):
            others = ", ".join(name.partition("/")[0] for name in owned.holders if name != request.holder)
            raise RetryableError(
                f"computeSlices: claim {others} shares {request.device} with {compute_instances[0].slices}, "
                f"not {request.compute_slices}",
                where=f"GPU {self._address}",
                hint="give claims that share a partition the same parameters, or wait for the other claim",
            )
        for compute in compute_instances:
            driver.destroy_compute(compute)
        return driver.create_compute(instance, request.compute_slices)

    def _hold_lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        return self._locks.hold([f"GPU {self._address}"], deadline.capped(LOCK_TIMEOUT_S), "another claim's partition")


def _owned(record: OwnershipRecord, instance: GpuInstance) -> OwnedInstance | None:
    """Find the record of an instance: a place never has two instances of a profile."""
    for one in record.instances:
        if (one.profile, one.start) == (instance.profile, instance.placement.start):
            return one
    return None


def _replaced(record: OwnershipRecord, before: OwnedInstance, after: OwnedInstance | None) -> OwnershipRecord:
    others = tuple(one for one in record.instances if one != before)
    return msgspec.structs.replace(record, instances=others if after is None else (*others, after))


def _with_holder(record: OwnershipRecord, request: PartitionRequest) -> OwnershipRecord:
    place = request.placement
    before = next((one for one in record.instances if one.device == request.device), None)
    holders = before.holders if before is not None else ()
    if before is not None and request.holder in holders and not before.leaving:
        return record
    holders = tuple(dict.fromkeys((*holders, request.holder)))
    held = OwnedInstance(request.device, request.profile, place.start, place.size, holders)
    others = tuple(one for one in record.instances if one.device != request.device)
    return msgspec.structs.replace(record, instances=(*others, held))


def _destroy(driver: MigDriver, instance: GpuInstance, deadline: Deadline) -> None:
    for compute in driver.compute_instances(instance):
        _retry(lambda compute=compute: driver.destroy_compute(compute), deadline)  # type: ignore[misc]
    _retry(lambda: driver.destroy(instance), deadline)


def _retry(step: Callable[[], _T], deadline: Deadline) -> _T:
    """Retry a step for a while: a container that has just stopped closes its GPU a moment later.

    RetryableError if the deadline has passed before the first attempt.
    """
    deadline.check("a MIG instance")
    end = deadline.capped(RETRY_TIMEOUT_S)
    while True:
        try:
            return step()
        except (InUseError, NoRoomError):
            if end.remaining() <= _RETRY_INTERVAL_S:
                raise
        time.sleep(_RETRY_INTERVAL_S)
