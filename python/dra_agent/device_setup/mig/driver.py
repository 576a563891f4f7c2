"""NVML calls that list, create and destroy MIG instances of one GPU, each with a deadline and an error message.

It has no policy: gpu.py decides which instance belongs to which claim, and which one is destroyed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.mig import capability_minors
from dra_agent.inventory.nvidia.nvml_client import (
    NoPermissionError,
    NotSupportedError,
    NvmlClient,
    NvmlError,
    UnknownGpuError,
)
from dra_agent.inventory.nvidia.partitionable import instance_handles
from dra_agent.inventory.nvidia.profiles import Placement, read_profiles

SLOW_CALL_TIMEOUT_S = 15.0
"""Seconds for a call that creates or destroys an instance or changes the mode; one takes about a second."""
IN_USE, INSUFFICIENT, INVALID_ARGUMENT = 19, 23, 2
"""Of nvmlReturn_t."""
_SHARED_ENGINES = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only existing one."""
_MAX_INSTANCES = 16


class InUseError(RetryableError):
    """A process still uses the instance, or the GPU."""


class NoRoomError(RetryableError):
    """The GPU has no capacity for the instance, perhaps because another one is still being destroyed."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """An existing GPU instance."""

    handle: Any
    id: int
    profile: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """The compute instance of a GPU instance: the part that a container uses."""

    handle: Any
    id: int
    slices: int


class MigDriver:
    """One GPU during one operation: handles are valid only that long."""

    def __init__(self, nvml: NvmlClient, host: Host, address: str, profiles: dict[str, tuple[int, ...]]) -> None:
        """Find the GPU. RetryableError if NVML does not respond or does not know it.

        `profiles` caches the profile IDs of each GPU, which never change, between operations.
        """
        self._nvml = nvml
        self._host = host
        self._address = address
        self._profiles = profiles
        self._where = f"GPU {address}"
        nvml.start()
        self._gpu = self._find()

    def mode(self) -> tuple[bool, bool]:
        """Return whether MIG mode is enabled, and whether it will be after a reset.

        Raises:
            PermanentError: The GPU does not support MIG.
        """
        try:
            now, pending = self.call("nvmlDeviceGetMigMode", self._gpu)
        except NotSupportedError as error:
            raise PermanentError("it does not support MIG", where=self._where, hint="claim another device") from error
        return bool(now), bool(pending)

    def set_mode(self, on: bool) -> None:
        """Change MIG mode; InUseError if a process has the GPU open, RetryableError if it needs a reset."""
        word = "on" if on else "off"
        in_use = InUseError(
            f"MIG mode cannot be switched {word}: a process has the GPU open",
            where=self._where,
            hint="stop the processes that monitor or use it (nvidia-smi, dcgm, fabric clients); the agent retries",
        )
        try:
            status = self.call("nvmlDeviceSetMigMode", self._gpu, int(on), slow=True)
        except NotSupportedError as error:
            raise self._unsupported(f"MIG mode cannot be switched {word}", error) from error
        except NvmlError as error:
            if error.code == IN_USE:
                raise in_use from error
            raise self._error(f"MIG mode cannot be switched {word}", error) from error
        self._gpu = self._find()
        if self.mode()[0] == on:
            return
        # A pending mode would take effect with the next reset, when another claim may use the GPU.
        self.call("nvmlDeviceSetMigMode", self._gpu, int(not on), slow=True)
        if status == IN_USE:
            raise in_use
        raise RetryableError(
            f"MIG mode is switched {word} with a reset of the GPU only",
            where=self._where,
            hint=f"switch it {word} (nvidia-smi -mig {int(on)}) and reset it while nothing uses it "
            "(nvidia-smi --gpu-reset)",
        )

    def instances(self) -> list[GpuInstance]:
        """List the existing GPU instances."""
        found = []
        profiles = self._profiles.get(self._address)
        if profiles is None:
            known = read_profiles(self._nvml, self._gpu, self._address)
            profiles = tuple(profile.id for profile in known)
            # An empty table is not kept: instances that exist would never be listed.
            if profiles:
                self._profiles[self._address] = profiles
        for profile in profiles:
            for handle in instance_handles(self._nvml, self._gpu, self._address, profile):
                info = self.call("nvmlGpuInstanceGetInfo", handle)
                place = Placement(info.placement.start, info.placement.size)
                found.append(GpuInstance(handle, info.id, profile, place))
        return found

    def make(self, profile: int, placement: Placement) -> GpuInstance:
        """Create a GPU instance.

        Raises:
            NoRoomError: Another instance occupies its place, whether it is listed or not.
            PermanentError: The driver does not support the placement.
            RetryableError: NVML fails.
        """
        place = self._nvml.module.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = placement.start, placement.size
        message = f"a MIG instance of profile {profile} cannot be created at memory slice {placement.start}"
        try:
            handle = self.call(
                "nvmlDeviceCreateGpuInstanceWithPlacement", self._gpu, profile, ctypes.byref(place), slow=True
            )
        except NotSupportedError as error:
            if not self.mode()[0]:
                raise self._error(f"{message}: MIG mode was switched off", error) from error
            raise self._unsupported(message, error) from error
        except NvmlError as error:
            if error.code == INSUFFICIENT:
                raise NoRoomError(
                    f"{message}: the GPU has no room for it there",
                    where=self._where,
                    hint="list the conflicting instances with `nvidia-smi mig -lgi`; the agent retries",
                ) from error
            if error.code == INVALID_ARGUMENT:
                raise PermanentError(
                    f"{message}: the driver does not support this placement",
                    where=self._where,
                    hint="delete the claim; the published devices now match the driver",
                ) from error
            raise self._error(message, error) from error
        info = self.call("nvmlGpuInstanceGetInfo", handle)
        return GpuInstance(handle, info.id, profile, placement)

    def compute_instances(self, instance: GpuInstance) -> list[ComputeInstance]:
        """List the compute instances of a GPU instance."""
        found = []
        for profile, slices in self._compute_profiles(instance):
            handles = (self._nvml.module.c_nvmlComputeInstance_t * _MAX_INSTANCES)()
            count = ctypes.c_uint(_MAX_INSTANCES)
            self.call("nvmlGpuInstanceGetComputeInstances", instance.handle, profile, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                info = self.call("nvmlComputeInstanceGetInfo_v2", handle)
                found.append(ComputeInstance(handle, info.id, slices))
        return found

    def create_compute(self, instance: GpuInstance, slices: int | None) -> ComputeInstance:
        """Create the compute instance; `slices` None: all slices.

        Raises:
            PermanentError: The partition does not support that number of slices.
            RetryableError: NVML fails.
        """
        offered = self._compute_profiles(instance)
        slice_count = max((count for _, count in offered), default=0) if slices is None else slices
        profile = next((profile for profile, count in offered if count == slice_count), None)
        if profile is None:
            offered_slices = ", ".join(str(count) for count in sorted({count for _, count in offered}))
            raise PermanentError(
                f"computeSlices: this partition does not support {slice_count}",
                where=self._where,
                hint=f"request {offered_slices}",
            )
        try:
            handle = self.call("nvmlGpuInstanceCreateComputeInstance", instance.handle, profile, slow=True)
        except NvmlError as error:
            raise self._error("a compute instance cannot be created", error) from error
        return ComputeInstance(handle, self.call("nvmlComputeInstanceGetInfo_v2", handle).id, slice_count)

    def uuid(self, compute: ComputeInstance) -> str:
        """Return the UUID of the MIG device of a compute instance."""
        device = self.call("nvmlComputeInstanceGetInfo_v2", compute.handle).device
        uuid: str = self.call("nvmlDeviceGetUUID", device)
        return uuid

    def capabilities(self, instance: GpuInstance, compute: ComputeInstance) -> tuple[int, ...]:
        """Return the minor numbers of both capability nodes; RetryableError until the driver lists them."""
        minor = self.call("nvmlDeviceGetMinorNumber", self._gpu)
        problems: list[Diagnostic] = []
        minors = capability_minors(self._host, minor, instance.id, compute.id, problems)
        if problems:
            raise RetryableError(problems[0].message, where=problems[0].where, hint=problems[0].hint)
        return minors

    def destroy_compute(self, compute: ComputeInstance) -> None:
        """Destroy a compute instance, if it exists. InUseError while a process uses it."""
        self._destroy("nvmlComputeInstanceDestroy", compute.handle, "its compute instance")

    def destroy(self, instance: GpuInstance) -> None:
        """Destroy a GPU instance without compute instances, if it exists."""
        self._destroy("nvmlGpuInstanceDestroy", instance.handle, "its GPU instance")

    def _destroy(self, call: str, handle: Any, message: str) -> None:
        try:
            self.call(call, handle, slow=True)
        except UnknownGpuError:
            return
        except NvmlError as error:
            if error.code == IN_USE:
                raise InUseError(
                    f"{message} cannot be destroyed: a process still uses it",
                    where=self._where,
                    hint="stop the processes that compute on it (nvidia-smi lists them); the agent retries",
                ) from error
            raise self._error(f"{message} cannot be destroyed", error) from error

    def _compute_profiles(self, instance: GpuInstance) -> list[tuple[int, int]]:
        """List ID and compute slices of the profiles of a GPU instance."""
        found = []
        for number in range(self._nvml.module.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self.call(
                    "nvmlGpuInstanceGetComputeInstanceProfileInfo", instance.handle, number, _SHARED_ENGINES
                )
            except NotSupportedError:
                continue
            except NvmlError as error:
                if error.code == INVALID_ARGUMENT:
                    continue
                raise
            found.append((info.id, info.sliceCount))
        return found

    def _find(self) -> Any:
        domain, _, rest = self._address.partition(":")
        bus_id = f"{int(domain, 16):08X}:{rest.upper()}"
        return self.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode())

    def call(self, name: str, *arguments: Any, slow: bool = False) -> Any:
        """Call NVML about this GPU. Raises NvmlError and CallTimeoutError; `slow` has a longer timeout."""
        return self._nvml.call(name, *arguments, about=self._address, timeout=SLOW_CALL_TIMEOUT_S if slow else None)

    def _unsupported(self, message: str, error: NvmlError) -> PermanentError:
        """Return the error for a call that the driver does not support in the guest of a vGPU (nvml.h)."""
        return PermanentError(
            f"{message}: {error.message}; a vGPU is partitioned on its host only",
            where=self._where,
            hint="claim another device, or partition the GPU on the host of this virtual machine",
        )

    def _error(self, message: str, error: NvmlError) -> RetryableError:
        message = f"{message}: {error.message}"
        if isinstance(error, NoPermissionError):
            return NoPermissionError(message, error.code)
        return RetryableError(message, where=self._where, hint=error.hint or "check the kernel log (dmesg)")
