"""GPUs with MIG partitions by an operator's rule: describes whole GPUs, partitions and foreign instances.

It does not create or destroy instances: claims do so, and the published devices stay the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec

from dra_agent.diagnostic import Diagnostic, UnreadDiagnostic
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.model import Device, Exclusion, device_name
from dra_agent.inventory.nvidia.describe import describe_instance, describe_partition
from dra_agent.inventory.nvidia.gpu_info import DriverInfo, GpuInfo
from dra_agent.inventory.nvidia.mig import MigInstance, read_instances, retry_if_changed
from dra_agent.inventory.nvidia.mig_access import memory_denied, partitions_denied
from dra_agent.inventory.nvidia.mig_ownership import OwnershipRecord, read_note
from dra_agent.inventory.nvidia.nvml_client import NoPermissionError, NotSupportedError, NvmlClient
from dra_agent.inventory.nvidia.partitions import GpuInstance, Partition, PartitionLayout
from dra_agent.inventory.nvidia.profiles import MigProfile, Placement, read_profiles
from dra_agent.inventory.settings import PartitionRule

_MAX_INSTANCES = 16
_HOPPER = (9, 0)
"""Compute capability from which on MIG mode changes without a reset of the GPU (MIG user guide)."""


class NotPartitionableError(RetryableError):
    """The driver does not partition the GPU, though the GPU has a MIG mode."""


class PartitionableGpus:
    """Describes them; keeps the last result while NVML does not respond."""

    def __init__(self, host: Host, nvml: NvmlClient) -> None:
        self._host = host
        self._nvml = nvml
        self._profiles: dict[str, tuple[MigProfile, ...]] = {}
        self._undivided: dict[str, GpuInfo] = {}
        """The GPU with MIG mode off: its published description must not change with the mode."""
        self._existing: dict[str, list[GpuInstance]] = {}
        self._foreign_instances: dict[str, list[GpuInstance]] = {}
        """Instances that the agent has not made."""
        self._live: dict[str, list[MigInstance]] = {}
        self.counter_sets: list[CounterSet] = []
        self.withheld: list[Exclusion] = []

    def begin(self, present: set[str]) -> None:
        """Start a scan of the GPUs with these addresses."""
        self.counter_sets, self.withheld = [], []
        for known in (self._profiles, self._undivided, self._existing, self._foreign_instances, self._live):
            for gone in known.keys() - present:
                del known[gone]

    def forget_profiles(self) -> None:
        """Read the profiles again: another driver may have others for the same GPU (mig-parted#166 and #187)."""
        self._profiles.clear()

    def places(self, address: str) -> list[tuple[int, str]]:
        """Return the instances of a GPU: number, and placement as in the identity `mig` of a partition."""
        found = self._existing.get(address, [])
        return [(one.id, f"{one.profile}:{one.placement.start}:{one.placement.size}") for one in found]

    def whole_facts(self, address: str, facts: GpuInfo) -> GpuInfo:
        """Return the published device of the whole GPU, in either mode."""
        if facts.mig is False:
            self._undivided[address] = facts
        return self._undivided.get(address, facts)

    def describe(
        self, whole: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, rule: PartitionRule, handle: Any
    ) -> list[Device] | None:
        """Describe one GPU and its partitions; `handle` of None: NVML does not respond for it now.

        None: the process may not partition it, so that it is described as without the rule.
        """
        address = whole.function.pci_address
        if handle is not None:
            try:
                self._read_partitions(address, facts, handle, whole)
            except NotPartitionableError as error:
                whole.problems.append(Diagnostic(whole.name, error.message, error.hint, severity="warning"))
                return None
            except NoPermissionError:
                whole.problems.append(partitions_denied(whole.name))
                if address not in self._profiles:
                    return None
            except RetryableError as error:
                whole.health, whole.health_reason = "unmonitored", "NVML does not respond"
                whole.problems.append(UnreadDiagnostic(whole.name, f"its MIG partitions: {error.message}", error.hint))
        profiles = self._profiles.get(address)
        if profiles is None:
            self.withhold(whole.name, "its possible MIG partitions are not known while NVML does not respond")
            return []
        if self.whole_facts(address, facts).memory_denied:
            whole.problems.append(memory_denied(whole.name))
        return self._devices(whole, facts, driver, rule, PartitionLayout(profiles, self._foreign(address, rule)))

    def _read_partitions(self, address: str, facts: GpuInfo, handle: Any, whole: DeviceBuilder) -> None:
        if address not in self._profiles:
            self._check_virtualization(address, handle)
            profiles = read_profiles(self._nvml, handle, address)
            if not profiles:
                # Not kept: a table that is empty now may be complete at the next scan.
                raise NotPartitionableError(
                    "NVML lists no MIG profile for it, so that it is not partitioned",
                    hint="run `nvidia-smi mig -lgip`; exclude the GPU from inventory.partition if it has no profiles",
                )
            self._profiles[address] = profiles
        found: list[GpuInstance] = []
        live: list[MigInstance] = []
        # An instance is recorded before its creation and until its removal: it may change while NVML is queried.
        notes = [self._note(address, whole)]
        if facts.mig:
            found = list_instances(self._nvml, handle, address, self._profiles[address])
            live = read_instances(self._nvml, handle, self._host, address, facts.minor, whole.problems)
        notes.append(self._note(address, whole))
        self._existing[address], self._live[address] = found, live
        # The owner is known only of instances at that time. Without the record, none is considered foreign.
        self._foreign_instances[address] = [
            instance
            for instance in found
            if not any(note is None or note.owns(instance.profile, instance.placement.start) for note in notes)
        ]

    def _check_virtualization(self, address: str, handle: Any) -> None:
        """Raise NotPartitionableError in the guest of a vGPU, which cannot create instances (nvml.h)."""
        try:
            mode = self._nvml.call("nvmlDeviceGetVirtualizationMode", handle, about=address)
        except NotSupportedError:
            return
        if mode == self._nvml.module.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
            raise NotPartitionableError(
                "inventory.partition selects it, but it is a vGPU, which is partitioned on its host only",
                hint="partition the GPU on the host of this virtual machine, or exclude it from inventory.partition",
            )

    def _note(self, address: str, whole: DeviceBuilder) -> OwnershipRecord | None:
        try:
            return read_note(self._host, address)
        except RetryableError as error:
            problem = Diagnostic(error.where or whole.name, error.message, error.hint)
            if problem not in whole.problems:
                whole.problems.append(problem)
            return None

    def _foreign(self, address: str, rule: PartitionRule) -> list[GpuInstance]:
        return [] if rule.foreign == "destroy" else self._foreign_instances.get(address, [])

    def _devices(
        self, whole: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, rule: PartitionRule, division: PartitionLayout
    ) -> list[Device]:
        address, name = whole.function.pci_address, whole.name
        self.counter_sets.append(division.counters(name))
        fixed = facts.compute_capability is not None and facts.compute_capability < _HOPPER
        foreign = ", ".join(division.named(one.profile, one.placement.start) for one in division.foreign)
        devices = []
        if facts.mig or not fixed:
            devices += self._partitions(whole, facts, driver, rule, division, foreign)
        else:
            message = "MIG mode is off and changes only with a reset of this GPU, so that it is offered as a whole only"
            hint = "switch the mode on and reset the GPU (nvidia-smi -mig 1, nvidia-smi --gpu-reset) to have partitions"
            whole.problems.append(Diagnostic(name, message, hint, severity="warning"))
        ids = {instance.id for instance in division.foreign}
        for live in self._live.get(address, []):
            if live.gpu_instance in ids:
                builder = _partition_builder(whole, live.parts)
                describe_instance(builder, facts, driver, live)
                devices.append(builder.build())
        if facts.mig and fixed:
            self.withhold(name, "MIG mode is on and changes only with a reset of it: partitions are offered")
        elif foreign:
            self.withhold(name, f"instances that the agent did not create use a part of it: {foreign}")
        else:
            whole.add_identity(mig="whole", foreign=_policy(rule))
            takes = (division.of_whole(name),)
            order = len(division.partitions) + 1
            devices.append(msgspec.structs.replace(whole.build(), consumes_counters=takes, order=order))
        return devices

    def _partitions(
        self,
        whole: DeviceBuilder,
        facts: GpuInfo,
        driver: DriverInfo,
        rule: PartitionRule,
        division: PartitionLayout,
        foreign: str,
    ) -> list[Device]:
        address = whole.function.pci_address
        devices = []
        patterns: dict[int, Device] = {}
        taken = {
            device_name("gpu", address, *live.parts)
            for live in self._live.get(address, [])
            if any(live.gpu_instance == instance.id for instance in division.foreign)
        }
        for order, partition in enumerate(division.partitions, 1):
            name = device_name("gpu", address, *partition.parts)
            if not division.fits(partition):
                if name not in taken:
                    self.withhold(name, f"instances that the agent did not create use its place: {foreign}")
                continue
            pattern = patterns.get(partition.profile.id)
            if pattern is None:
                builder = _partition_builder(whole, partition.parts)
                describe_partition(builder, facts, driver, partition.profile)
                pattern = patterns[partition.profile.id] = builder.build()
            made = {"mig": _place(partition), "foreign": _policy(rule)}
            devices.append(
                msgspec.structs.replace(
                    pattern,
                    name=name,
                    consumes_counters=(division.of_partition(whole.name, partition),),
                    identity={**pattern.identity, **{key: value for key, value in made.items() if value}},
                    order=order,
                )
            )
        return devices

    def withhold(self, name: str, reason: str) -> None:
        """Record a device that is not published, and why."""
        self.withheld.append(Exclusion(name, reason, "partition"))


def list_instances(nvml: NvmlClient, handle: Any, address: str, profiles: Sequence[MigProfile]) -> list[GpuInstance]:
    """List the instances of a GPU, with or without compute instances.

    Raises CallTimeoutError, GpuLostError and NvmlError.
    """

    def list_once() -> list[GpuInstance]:
        found = []
        for profile in profiles:
            for instance in instance_handles(nvml, handle, address, profile.id):
                info = nvml.call("nvmlGpuInstanceGetInfo", instance, about=address)
                place = Placement(info.placement.start, info.placement.size)
                found.append(GpuInstance(info.id, profile.id, place))
        return found

    return retry_if_changed(list_once)


def instance_handles(nvml: NvmlClient, handle: Any, address: str, profile: int) -> list[Any]:
    """Return NVML's handles of the instances of one profile."""
    handles = (nvml.module.c_nvmlGpuInstance_t * _MAX_INSTANCES)()
    count = ctypes.c_uint(_MAX_INSTANCES)
    try:
        nvml.call("nvmlDeviceGetGpuInstances", handle, profile, handles, ctypes.byref(count), about=address)
    except NotSupportedError:
        return []
    return list(handles[: count.value])


def _partition_builder(whole: DeviceBuilder, parts: tuple[str | int, ...]) -> DeviceBuilder:
    """Create the builder of a partition, which inherits the GPU's health."""
    builder = DeviceBuilder(whole.host, whole.function, "gpu", whole.problems, parts)
    builder.health, builder.health_reason = whole.health, whole.health_reason
    builder.issues, builder.memory_errors = list(whole.issues), whole.memory_errors
    return builder


def _place(partition: Partition) -> str:
    return f"{partition.profile.id}:{partition.placement.start}:{partition.placement.size}"


def _policy(rule: PartitionRule) -> str:
    return "destroy" if rule.foreign == "destroy" else ""
