"""The NVML calls that look at, make and destroy MIG instances on one GPU: each with a deadline, and errors in words.

It decides nothing: whose an instance is and what has to go is said by gpu.py.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Diagnostic
from dra_agent.inventory.nvidia.mig import capability_minors
from dra_agent.inventory.nvidia.nvml_client import NotSupportedError, NvmlClient, NvmlError, UnknownGpuError
from dra_agent.inventory.nvidia.partitionable import instance_handles
from dra_agent.inventory.nvidia.profiles import Placement, read_profiles

SLOW = 15.0
"""Seconds for a call that makes or destroys an instance or changes the mode; one takes about a second."""
IN_USE, INSUFFICIENT, INVALID_ARGUMENT, NO_PERMISSION = 19, 23, 2, 4
"""Of nvmlReturn_t."""
_OWN_ENGINES = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only one that there is."""
_MOST = 16


class InUseError(RetryableError):
    """Something still uses the instance, or the GPU."""


class NoRoomError(RetryableError):
    """The GPU has no room for the instance, or says so while another one is on its way out."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that exists."""

    handle: Any
    id: int
    profile: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """The compute instance of a GPU instance: what a container can be given."""

    handle: Any
    id: int
    slices: int


class MigDriver:
    """One GPU, for the time of one operation: handles do not outlive it."""

    def __init__(self, nvml: NvmlClient, host: Host, address: str, profiles: dict[str, tuple[int, ...]]) -> None:
        """Find the GPU. RetryableError where NVML does not respond or does not know it.

        `profiles` keeps the ids of the profiles that each GPU has, which never change, from one operation to the next.
        """
        self._nvml = nvml
        self._host = host
        self._address = address
        self._profiles = profiles
        self._where = f"GPU {address}"
        nvml.start()
        self._gpu = self._find()

    def mode(self) -> tuple[bool, bool]:
        """Say whether MIG mode is on, and whether it will be after a reset."""
        try:
            now, pending = self._ask("nvmlDeviceGetMigMode", self._gpu)
        except NotSupportedError as error:
            raise PermanentError("it has no MIG", where=self._where, hint="claim another device") from error
        return bool(now), bool(pending)

    def set_mode(self, on: bool) -> None:
        """Switch MIG mode; InUseError where something has the GPU open, RetryableError where it takes a reset."""
        word = "on" if on else "off"
        in_use = InUseError(
            f"MIG mode cannot be switched {word}: something has the GPU open",
            where=self._where,
            hint="stop what monitors or uses it (nvidia-smi, dcgm, fabric clients); it is tried again",
        )
        try:
            status = self._ask("nvmlDeviceSetMigMode", self._gpu, int(on), slow=True)
        except NvmlError as error:
            if error.code == IN_USE:
                raise in_use from error
            raise self._failed(f"MIG mode cannot be switched {word}", error) from error
        self._gpu = self._find()
        if self.mode()[0] == on:
            return
        # What is pending would come with the next reset, whenever that is, and whoever has the GPU then.
        self._ask("nvmlDeviceSetMigMode", self._gpu, int(not on), slow=True)
        if status == IN_USE:
            raise in_use
        raise RetryableError(
            f"MIG mode is switched {word} with a reset of the GPU only",
            where=self._where,
            hint=f"switch it {word} (nvidia-smi -mig {int(on)}) and reset it while nothing uses it "
            "(nvidia-smi --gpu-reset)",
        )

    def instances(self) -> list[GpuInstance]:
        """List the GPU instances that exist."""
        found = []
        profiles = self._profiles.get(self._address)
        if profiles is None:
            known = read_profiles(self._nvml, self._gpu, self._address)
            profiles = self._profiles[self._address] = tuple(profile.id for profile in known)
        for profile in profiles:
            for handle in instance_handles(self._nvml, self._gpu, self._address, profile):
                info = self._ask("nvmlGpuInstanceGetInfo", handle)
                place = Placement(info.placement.start, info.placement.size)
                found.append(GpuInstance(handle, info.id, profile, place))
        return found

    def make(self, profile: int, placement: Placement) -> GpuInstance:
        """Make a GPU instance. NoRoomError where something is in its way, seen or unseen."""
        place = self._nvml.module.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = placement.start, placement.size
        what = f"a MIG instance of profile {profile} cannot be made at memory slice {placement.start}"
        try:
            handle = self._ask(
                "nvmlDeviceCreateGpuInstanceWithPlacement", self._gpu, profile, ctypes.byref(place), slow=True
            )
        except NvmlError as error:
            if error.code == INSUFFICIENT:
                raise NoRoomError(
                    f"{what}: the GPU has no room for it there",
                    where=self._where,
                    hint="see what is in the way with `nvidia-smi mig -lgi`; it is tried again",
                ) from error
            if error.code == INVALID_ARGUMENT:
                raise PermanentError(
                    f"{what}: the driver does not know such a place",
                    where=self._where,
                    hint="delete the claim; the devices that are published now fit the driver",
                ) from error
            raise self._failed(what, error) from error
        info = self._ask("nvmlGpuInstanceGetInfo", handle)
        return GpuInstance(handle, info.id, profile, placement)

    def computes(self, instance: GpuInstance) -> list[ComputeInstance]:
        """List the compute instances of a GPU instance."""
        found = []
        for profile, slices in self._compute_profiles(instance):
            handles = (self._nvml.module.c_nvmlComputeInstance_t * _MOST)()
            count = ctypes.c_uint(_MOST)
            self._ask("nvmlGpuInstanceGetComputeInstances", instance.handle, profile, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                info = self._ask("nvmlComputeInstanceGetInfo_v2", handle)
                found.append(ComputeInstance(handle, info.id, slices))
        return found

    def make_compute(self, instance: GpuInstance, slices: int | None) -> ComputeInstance:
        """Make the compute instance; `slices` of None: all that there are."""
        offered = self._compute_profiles(instance)
        wanted = max((count for _, count in offered), default=0) if slices is None else slices
        profile = next((profile for profile, count in offered if count == wanted), None)
        if profile is None:
            there = ", ".join(str(count) for count in sorted({count for _, count in offered}))
            raise PermanentError(
                f"computeSlices: {wanted} cannot be had of this partition", where=self._where, hint=f"ask for {there}"
            )
        try:
            handle = self._ask("nvmlGpuInstanceCreateComputeInstance", instance.handle, profile, slow=True)
        except NvmlError as error:
            raise self._failed("a compute instance cannot be made", error) from error
        return ComputeInstance(handle, self._ask("nvmlComputeInstanceGetInfo_v2", handle).id, wanted)

    def uuid(self, compute: ComputeInstance) -> str:
        """Give the UUID of the MIG device that a compute instance is."""
        device = self._ask("nvmlComputeInstanceGetInfo_v2", compute.handle).device
        uuid: str = self._ask("nvmlDeviceGetUUID", device)
        return uuid

    def capabilities(self, instance: GpuInstance, compute: ComputeInstance) -> tuple[int, ...]:
        """Give the minors of the nodes that open the two; RetryableError while the driver names none."""
        minor = self._ask("nvmlDeviceGetMinorNumber", self._gpu)
        problems: list[Diagnostic] = []
        minors = capability_minors(self._host, minor, instance.id, compute.id, problems)
        if problems:
            raise RetryableError(problems[0].message, where=problems[0].where, hint=problems[0].hint)
        return minors

    def destroy_compute(self, compute: ComputeInstance) -> None:
        """Destroy a compute instance; one that is gone is no error. InUseError while a process computes there."""
        self._destroy("nvmlComputeInstanceDestroy", compute.handle, "its compute instance")

    def destroy(self, instance: GpuInstance) -> None:
        """Destroy a GPU instance that has no compute instances; one that is gone is no error."""
        self._destroy("nvmlGpuInstanceDestroy", instance.handle, "its GPU instance")

    def _destroy(self, call: str, handle: Any, what: str) -> None:
        try:
            self._ask(call, handle, slow=True)
        except UnknownGpuError:
            return
        except NvmlError as error:
            if error.code == IN_USE:
                raise InUseError(
                    f"{what} cannot be destroyed: a process still uses it",
                    where=self._where,
                    hint="end what computes there (nvidia-smi shows it); it is tried again",
                ) from error
            raise self._failed(f"{what} cannot be destroyed", error) from error

    def _compute_profiles(self, instance: GpuInstance) -> list[tuple[int, int]]:
        """List id and compute slices of the profiles that a GPU instance offers."""
        found = []
        for number in range(self._nvml.module.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self._ask("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance.handle, number, _OWN_ENGINES)
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
        return self._ask("nvmlDeviceGetHandleByPciBusId", bus_id.encode())

    def _ask(self, name: str, *arguments: Any, slow: bool = False) -> Any:
        return self._nvml.call(name, *arguments, about=self._address, timeout=SLOW if slow else None)

    def _failed(self, what: str, error: NvmlError) -> RetryableError:
        hint = error.hint
        if error.code == NO_PERMISSION:
            hint = "run the agent as root, with CAP_SYS_ADMIN"
        return RetryableError(
            f"{what}: {error.message}", where=self._where, hint=hint or "check the kernel log (dmesg)"
        )
