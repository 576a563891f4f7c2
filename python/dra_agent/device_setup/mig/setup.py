"""The device setup of MIG partitions, and of whole GPUs that are also published as partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from dra_agent.cdi.claim import env_name
from dra_agent.cdi.edits.nvidia import capability_edits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.mig.driver import MigDriver
from dra_agent.device_setup.mig.gpu import CreatedPartition, OwnershipStore, PartitionedGpu, PartitionRequest
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.inventory.nvidia.mig_access import CHANGE_HINT
from dra_agent.inventory.nvidia.nvml_client import NoPermissionError, acquire
from dra_agent.inventory.nvidia.profiles import Placement
from dra_agent.prepare.locks import setup_locks
from dra_agent.prepare.setup import API_VERSION, Kind, SetupDevice, SetupOutcome, UnsuitableError

KIND: Kind = (API_VERSION, "MigConfig")


class MigConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """Parameters of a MIG partition."""

    compute_slices: Annotated[int, msgspec.Meta(ge=1, le=7)] | None = None
    """Compute slices of the compute instance; the other slices of the partition stay idle, its memory is unchanged. Not
    set: all slices of the profile."""


_WHOLE = "whole"


class MigSetup:
    """Creates and destroys partitions on one host; thread-safe."""

    kind: Kind = KIND
    parameters = MigConfig

    def __init__(self, host: Host, timeout: float) -> None:
        """`timeout` in seconds is for calls that only read. Records are kept in the host's `state`."""
        self._host = host
        self._timeout = timeout
        self._profiles: dict[str, tuple[int, ...]] = {}
        self._store = OwnershipStore(host)
        self._locks = setup_locks(host.state, "mig")
        self._lock = threading.Lock()
        self._gpus: dict[str, PartitionedGpu] = {}

    def default(self, device: Device) -> MigConfig | None:
        """Every such device must be created, with or without parameters."""
        return MigConfig() if "mig" in device.identity else None

    def check(self, device: Device, parameters: MigConfig) -> None:
        """Accept partitions that are created for a claim.

        Raises:
            UnsuitableError: It is another device.
            PermanentError: More compute slices are requested than the profile has.
        """
        place = device.identity.get("mig")
        if place is None or (place == _WHOLE and parameters != MigConfig()):
            raise UnsuitableError(f"kind: {KIND[1]} is for MIG partitions that are created for a claim")
        slices = _slices(device)
        if parameters.compute_slices is not None and slices is not None and parameters.compute_slices > slices:
            raise PermanentError(
                f"computeSlices: {parameters.compute_slices} exceed the {slices} of the partition",
                hint=f"request at most {slices}, or a larger profile",
            )

    def set_up(
        self, uid: str, devices: Sequence[SetupDevice], parameters: MigConfig, previous: Any, deadline: Deadline
    ) -> SetupOutcome:
        """Create missing partitions; the result in the record is for users."""
        del previous  # the GPU is the source of truth
        record: dict[str, Any] = {}
        edits: dict[str, ContainerEdits] = {}
        for item in devices:
            device = item.device
            gpu = self._gpu(device.pci_address)
            destroy_foreign = device.identity.get("foreign") == "destroy"
            if device.identity.get("mig") == _WHOLE:
                with _needs_permission(device.pci_address):
                    gpu.disable_mig(deadline, destroy_foreign=destroy_foreign)
                continue
            profile, start, size = (int(number) for number in item.identity("mig").split(":"))
            request = PartitionRequest(
                device.name,
                profile,
                Placement(start, size),
                _holder(uid, item.key),
                parameters.compute_slices,
                destroy_foreign,
            )
            with _needs_permission(device.pci_address):
                created = gpu.make(request, deadline)
            record[item.key] = {"uuid": created.uuid, "gi": created.gpu_instance, "ci": created.compute_instance}
            edits[item.key] = self._edits(device, created)
        return SetupOutcome(record, edits)

    def tear_down(self, uid: str, keys: Sequence[str], record: Any, deadline: Deadline) -> None:
        """Destroy partitions that no other claim uses; the records list them."""

        def release(address: str) -> None:
            # The name of a partition starts with that of its GPU. Other GPUs, which may be slow, hang or have a corrupt
            # record, are not read.
            name = device_name("gpu", address)
            holders = {_holder(uid, key) for key in keys if key.startswith(f"{name}-")}
            if not holders:
                return
            held = {holder for one in self._store.read(address).instances for holder in (*one.holders, one.leaving)}
            for holder in sorted(holders & held):
                self._gpu(address).release(holder, deadline)

        self._each_gpu(release)

    def roll_back(self, uid: str, keys: Sequence[str], parameters: MigConfig, deadline: Deadline) -> None:
        """Do the same: started steps are recorded."""
        self.tear_down(uid, keys, None, deadline)

    def prune(self, is_held: Callable[[str], bool]) -> None:
        """Destroy partitions recorded for claims that hold nothing; RetryableError if that fails."""
        known: Callable[[str], bool] = lambda holder: is_held(holder.partition("/")[0])  # noqa: E731
        self._each_gpu(lambda address: self._gpu(address).prune(known))

    def noted(self, uid: str) -> Sequence[str]:
        """Return the keys of the partitions that the records list for the claim."""
        notes = [self._store.read(address) for address in self._store.gpus()]
        holders = [holder for record in notes for one in record.instances for holder in (*one.holders, one.leaving)]
        return [key for owner, _, key in (holder.partition("/") for holder in holders) if owner == uid]

    def _each_gpu(self, step: Callable[[str], None]) -> None:
        """Call `step` for each GPU with a record; raise the first error after all calls."""
        failed: AgentError | None = None
        for address in self._store.gpus():
            try:
                step(address)
            except NoPermissionError as error:
                # Retried: the partition exists until an agent with the permission destroys it.
                failed = failed or RetryableError(error.message, where=f"GPU {address}", hint=CHANGE_HINT)
            except AgentError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _gpu(self, address: str) -> PartitionedGpu:
        with self._lock:
            gpu = self._gpus.get(address)
            if gpu is None:
                gpu = PartitionedGpu(address, self._store, lambda: self._driver(address), self._locks)
                self._gpus[address] = gpu
            return gpu

    @contextmanager
    def _driver(self, address: str) -> Iterator[MigDriver]:
        nvml = acquire(self._host.nvml, self._timeout)
        try:
            yield MigDriver(nvml, self._host, address, self._profiles)
        finally:
            nvml.close()

    def _edits(self, device: Device, created: CreatedPartition) -> ContainerEdits:
        nodes = capability_edits(self._host, created.capability_minors, device=device.name)
        return nodes.merged(ContainerEdits(env=(f"DRA_AGENT_DEVICE_{env_name(device.name)}_UUID={created.uuid}",)))


@contextmanager
def _needs_permission(address: str) -> Iterator[None]:
    """Raise PermanentError if NVML refuses a call: only a restart with other permissions changes that."""
    try:
        yield
    except NoPermissionError as error:
        raise PermanentError(error.message, where=f"GPU {address}", hint=CHANGE_HINT) from error


def _holder(uid: str, key: str) -> str:
    return f"{uid}/{key}"


def _slices(device: Device) -> int | None:
    """Return the compute slices in a profile's name: "3g.40gb" has three."""
    profile = device.attributes.get("profile")
    digits = (profile.string or "").partition("g.")[0] if profile is not None else ""
    return int(digits) if digits.isdecimal() else None
