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
from dra_agent.inventory.nvidia.nvml_client import GpuLostError, UnknownGpuError
from dra_agent.inventory.nvidia.profiles import Placement
from dra_agent.prepare.locks import KeyedLocks


class OwnershipStore:
    """The ownership records of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, address: str) -> OwnershipRecord:
        """Return the record of a GPU; RetryableError if it cannot be read."""
        return read_note(self._host, address)

    def write(self, note: OwnershipRecord) -> None:
        """Replace the record of a GPU; durable on return. RetryableError if the disk cannot be written."""
        if self._host.state is None:
            raise RetryableError("has no state directory for the records of MIG instances", where="this host")
        path = note_path(self._host.state, note.gpu)
        try:
            if not note.instances:
                atomic_file.remove(path, durable=True)
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_file.write(path, msgspec.json.encode(note), durable=True)
        except OSError as error:
            raise RetryableError(
                f"cannot be written: {error.strerror}", where=str(path), hint="make room for the state directory"
            ) from error

    def gpus(self) -> list[str]:
        """List the PCI addresses of the GPUs that have records."""
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

WAIT = 20.0
"""Seconds that a claim waits for the lock of a GPU: the kubelet retries after 45."""
REPAIR_S = 120.0
"""Seconds to destroy instances of claims that are no longer in the ledger: several driver calls for each."""
_PATIENCE = 5.0
"""Seconds for which a blocked step is retried."""
_PAUSE = 0.25
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
        notebook: OwnershipStore,
        driver: Callable[[], AbstractContextManager[MigDriver]],
        locks: KeyedLocks | None = None,
    ) -> None:
        """`driver` is called for each operation; all agents on the host share `locks`."""
        self._address = address
        self._notebook = notebook
        self._driver = driver
        self._locks = locks or KeyedLocks()

    def make(self, wanted: PartitionRequest, deadline: Deadline) -> CreatedPartition:
        """Create a partition, or find the existing one. RetryableError names what blocks it."""
        with self._alone(deadline), self._driver() as driver:
            if not driver.mode()[0]:
                _patiently(lambda: driver.set_mode(True), deadline)
            note = self._notebook.read(self._address)
            instance = self._clear(driver, note, wanted, deadline)
            held = _held(self._notebook.read(self._address), wanted)
            self._notebook.write(held)
            if instance is None:
                try:
                    instance = _patiently(lambda: driver.make(wanted.profile, wanted.placement), deadline)
                except (NoRoomError, PermanentError):
                    # A rejected instance was not created: an instance in its place belongs to another program.
                    others = tuple(one for one in held.instances if one.device != wanted.device)
                    self._notebook.write(msgspec.structs.replace(held, instances=others))
                    raise
            compute = self._compute(driver, held, instance, wanted)
            return CreatedPartition(
                driver.uuid(compute), instance.id, compute.id, driver.capabilities(instance, compute)
            )

    def release(self, holder: str, deadline: Deadline) -> None:
        """Release the instances of a claim; destroy unused ones. RetryableError while they are in use."""
        with self._alone(deadline):
            note = self._notebook.read(self._address)
            for one in note.instances:
                if holder not in (*one.holders, one.leaving):
                    continue
                others = tuple(name for name in one.holders if name != holder)
                left = msgspec.structs.replace(one, holders=others, leaving="" if others else holder)
                note = _with(note, one, left)
                self._notebook.write(note)
                if not others:
                    note = self._finish(note, left, deadline)

    def disable_mig(self, deadline: Deadline, *, destroy_foreign: bool) -> None:
        """Disable MIG mode, so the GPU can be used as a whole. RetryableError while an instance exists."""
        with self._alone(deadline), self._driver() as driver:
            if not driver.mode()[0]:
                return
            note = self._notebook.read(self._address)
            for instance in driver.instances():
                self._remove(driver, note, instance, deadline, destroy_foreign=destroy_foreign)
            _patiently(lambda: driver.set_mode(False), deadline)

    def prune(self, known: Callable[[str], bool]) -> None:
        """Release instances of holders that are not in the ledger; without a caller, it has its own deadline."""
        deadline = Deadline.of(REPAIR_S)
        with self._alone(deadline):
            note = self._notebook.read(self._address)
            for one in note.instances:
                left = msgspec.structs.replace(one, holders=tuple(filter(known, one.holders)))
                if left != one:
                    note = _with(note, one, left)
                    self._notebook.write(note)
                if not left.holders and not (left.leaving and known(left.leaving)):
                    note = self._finish(note, left, deadline)

    def _finish(self, note: OwnershipRecord, one: OwnedInstance, deadline: Deadline) -> OwnershipRecord:
        """Destroy unused instances; return the record without them."""
        try:
            with self._driver() as driver:
                if driver.mode()[0]:
                    for instance in driver.instances():
                        if _noted(note, instance) == one:
                            _destroy(driver, instance, deadline)
        except (GpuLostError, UnknownGpuError) as error:
            # Such a GPU recovers only with a reset, and no instance exists after that.
            log.warning("MIG instance abandoned: its GPU is lost", extra={"device": one.device, "reason": str(error)})
        note = _with(note, one, None)
        self._notebook.write(note)
        return note

    def _clear(
        self, driver: MigDriver, note: OwnershipRecord, wanted: PartitionRequest, deadline: Deadline
    ) -> GpuInstance | None:
        """Find the existing instance, or clear its place; RetryableError for an instance that must not be destroyed."""
        standing = None
        for instance in driver.instances():
            if not instance.placement.overlaps(wanted.placement):
                continue
            noted = _noted(note, instance)
            if (
                noted is not None
                and noted.device == wanted.device
                and (noted.holders or noted.leaving == wanted.holder)
            ):
                standing = instance
            else:
                self._remove(driver, note, instance, deadline, destroy_foreign=wanted.destroy_foreign)
        return standing

    def _remove(
        self,
        driver: MigDriver,
        note: OwnershipRecord,
        instance: GpuInstance,
        deadline: Deadline,
        *,
        destroy_foreign: bool,
    ) -> None:
        where = f"GPU {self._address}"
        what = f"MIG instance {instance.id} (profile {instance.profile} at memory slice {instance.placement.start})"
        noted = _noted(note, instance)
        if noted is not None and noted.holders:
            claims = ", ".join(holder.partition("/")[0] for holder in noted.holders)
            raise RetryableError(
                f"{what} is in the way: claim {claims} holds it", where=where, hint="release that claim, or wait for it"
            )
        if noted is None and not destroy_foreign:
            raise RetryableError(
                f"{what} is in the way, and the agent did not create it",
                where=where,
                hint=f"destroy it (nvidia-smi mig -dci -gi {instance.id}, nvidia-smi mig -dgi -gi {instance.id}), or "
                'set foreign = "destroy" in [[inventory.partition]]',
            )
        _destroy(driver, instance, deadline)
        if noted is not None:
            self._notebook.write(_with(self._notebook.read(self._address), noted, None))

    def _compute(
        self, driver: MigDriver, note: OwnershipRecord, instance: GpuInstance, wanted: PartitionRequest
    ) -> ComputeInstance:
        computes = driver.computes(instance)
        if len(computes) == 1 and wanted.compute_slices in (None, computes[0].slices):
            return computes[0]
        noted = _noted(note, instance)
        if computes and noted is not None and noted.holders != (wanted.holder,):
            others = ", ".join(name.partition("/")[0] for name in noted.holders if name != wanted.holder)
            raise RetryableError(
                f"computeSlices: claim {others} shares {wanted.device} with {computes[0].slices}, "
                f"not {wanted.compute_slices}",
                where=f"GPU {self._address}",
                hint="give claims that share a partition the same parameters, or wait for the other claim",
            )
        for compute in computes:
            driver.destroy_compute(compute)
        return driver.make_compute(instance, wanted.compute_slices)

    def _alone(self, deadline: Deadline) -> AbstractContextManager[None]:
        return self._locks.hold([f"GPU {self._address}"], deadline.capped(WAIT), "another claim's partition")


def _noted(note: OwnershipRecord, instance: GpuInstance) -> OwnedInstance | None:
    """Find the record of an instance: a place never has two instances of a profile."""
    for one in note.instances:
        if (one.profile, one.start) == (instance.profile, instance.placement.start):
            return one
    return None


def _with(note: OwnershipRecord, before: OwnedInstance, after: OwnedInstance | None) -> OwnershipRecord:
    others = tuple(one for one in note.instances if one != before)
    return msgspec.structs.replace(note, instances=others if after is None else (*others, after))


def _held(note: OwnershipRecord, wanted: PartitionRequest) -> OwnershipRecord:
    place = wanted.placement
    before = next((one for one in note.instances if one.device == wanted.device), None)
    holders = before.holders if before is not None else ()
    if before is not None and wanted.holder in holders and not before.leaving:
        return note
    holders = tuple(dict.fromkeys((*holders, wanted.holder)))
    held = OwnedInstance(wanted.device, wanted.profile, place.start, place.size, holders)
    others = tuple(one for one in note.instances if one.device != wanted.device)
    return msgspec.structs.replace(note, instances=(*others, held))


def _destroy(driver: MigDriver, instance: GpuInstance, deadline: Deadline) -> None:
    for compute in driver.computes(instance):
        _patiently(lambda compute=compute: driver.destroy_compute(compute), deadline)  # type: ignore[misc]
    _patiently(lambda: driver.destroy(instance), deadline)


def _patiently(step: Callable[[], _T], deadline: Deadline) -> _T:
    """Retry a step for a while: a container that has just stopped closes its GPU a moment later.

    RetryableError if the deadline has passed before the first attempt.
    """
    deadline.check("a MIG instance")
    end = deadline.capped(_PATIENCE)
    while True:
        try:
            return step()
        except (InUseError, NoRoomError):
            if end.remaining() <= _PAUSE:
                raise
        time.sleep(_PAUSE)
