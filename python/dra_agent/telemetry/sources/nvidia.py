"""NVIDIA GPUs and MIG devices, through the NVML process that the inventory has started.

It never starts the library: while a claim binds a GPU to another driver, or a driver container is replaced, the library
must stay closed. Its calls have separate lanes, so that a query of the inventory does not wait for them.
Averages of GPM (`nvml.gpm`) have one more for each GPU: where they hang, the other values are still read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import (
    GpuLostError,
    NotSupportedError,
    NvmlClient,
    NvmlError,
    StaleHandleError,
    WorkerExitedError,
    acquire,
)
from dra_agent.telemetry.model import DeviceSample, IncompleteError

CALL_TIMEOUT_S = 2.0
"""Seconds for the values of one GPU; a healthy driver needs a few milliseconds."""
_MEGA, _KIBI = 1e6, 1024.0
_MIG_PREFIX = "MIG-"
_REASONS = (
    ("power_cap", 0x4),
    ("hardware_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("thermal", 0x20 | 0x40),
    ("power_brake", 0x80),
)
"""Bits of nvmlClocksEventReasons (nvml.h; NVIDIA/go-nvml, gen/nvml/nvml.h). 0x1 is idle, 0x2 and 0x100 are settings:
they do not slow work down."""
_ACTIVITY = {
    "sm_percent": "sm_activity_ratio",
    "tensor_percent": "tensor_activity_ratio",
    "memory_bandwidth_percent": "memory_bandwidth_ratio",
}
_INSTANCE_ACTIVITY = {"graphics_percent": "gpu_utilization_ratio"}
"""What takes the place of nvmlDeviceGetUtilizationRates, which does not support MIG."""


def make(host: Host) -> NvidiaSource:
    """Create the source."""
    return NvidiaSource(host)


class NvidiaSource:
    """Reads GPUs by UUID."""

    name = "nvml"

    def __init__(self, host: Host) -> None:
        self._nvml: NvmlClient = acquire(host.nvml, CALL_TIMEOUT_S)
        self._handles: dict[str, tuple[str, Any]] = {}
        """By device: its UUID, and NVML's handle. A partition has another UUID for each claim."""
        self._generation = 0
        self._without_gpm: set[str] = set()
        """Devices that GPM does not support."""
        self._has_average: set[str] = set()
        """Devices whose reading of GPM before is the last one that was begun."""

    def can_read(self, device: Device) -> bool:
        """Return whether NVML has a name for the device, and values that are its own.

        A partition that is created for a claim has one while the claim exists. Compute instances of one GPU instance
        share its memory (CUPTI documentation, "Special Configurations"): that in use is not of one of them.
        """
        uuid = device.identity.get("uuid", "")
        if uuid.startswith(_MIG_PREFIX):
            enforcement = device.attributes.get("memoryEnforcement")
            if enforcement is None or enforcement.value != "mig":
                return False
        return bool(uuid) and self._nvml.is_running

    def read(self, device: Device) -> DeviceSample | None:
        """Read one GPU, or the memory and the activity of one MIG device."""
        uuid, lane = device.identity["uuid"], f"telemetry of {device.name}"
        try:
            if self._generation != self._nvml.generation:
                self._handles, self._generation = {}, self._nvml.generation
                self._without_gpm, self._has_average = set(), set()
            known_uuid, handle = self._handles.get(device.name, ("", None))
            if known_uuid != uuid:
                handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid, about=lane, timeout=CALL_TIMEOUT_S)
                self._handles[device.name] = uuid, handle
            values = dict(self._nvml.call("read_telemetry", handle, about=lane, timeout=CALL_TIMEOUT_S))
        except (StaleHandleError, WorkerExitedError):
            self._handles.pop(device.name, None)
            return None
        except NvmlError:
            # An instance can be created again with the UUID of one that was destroyed, whose handle is invalid.
            self._handles.pop(device.name, None)
            raise
        sample = _sample(values, is_instance=uuid.startswith(_MIG_PREFIX))
        try:
            return msgspec.structs.replace(sample, **self._averages(device, uuid, handle))
        except (StaleHandleError, WorkerExitedError, NotSupportedError):
            return sample
        except GpuLostError:
            raise
        except RetryableError as error:
            raise IncompleteError(sample, f"activity is not known: {error}") from None

    def _averages(self, device: Device, uuid: str, handle: Any) -> dict[str, Any]:
        """Return the averages since the reading before, by names of DeviceSample."""
        if device.name in self._without_gpm:
            return {}
        is_instance = uuid.startswith(_MIG_PREFIX)
        # A call that is not made, or returns too late, leaves an older reading, which may be of another claim's time.
        follows = device.name in self._has_average
        self._has_average.discard(device.name)
        lane = f"activity of {device.identity.get('parent', device.name)}"
        found = self._nvml.call("read_gpm", handle, uuid, is_instance, about=lane, timeout=CALL_TIMEOUT_S)
        if found is None:
            self._without_gpm.add(device.name)
            return {}
        self._has_average.add(device.name)
        fields = {**_ACTIVITY, **(_INSTANCE_ACTIVITY if is_instance else {})}
        return {fields[name]: percent * 0.01 for name, percent in found if name in fields} if follows else {}

    def close(self) -> None:
        """Free samples, and leave the library to the inventory."""
        if self._has_average and self._nvml.is_running:
            with suppress(RetryableError):
                self._nvml.call("release_gpm", about="activity", timeout=CALL_TIMEOUT_S)
        self._nvml.close()


def _sample(values: dict[str, float], *, is_instance: bool) -> DeviceSample:
    memory = DeviceSample(
        memory_used_bytes=_whole(values.get("memory_used_bytes")),
        memory_limit_bytes=_whole(values.get("memory_limit_bytes")),
    )
    if is_instance:
        # nvml.h defines information per instance for memory. Utilization is not supported on MIG-enabled GPUs
        # (nvmlDeviceGetUtilizationRates); power, energy, temperature and clocks are defined for the GPU.
        return memory
    reasons = values.get("clock_event_reasons")

    def scaled(name: str, factor: float) -> float | None:
        return values[name] * factor if name in values else None

    return msgspec.structs.replace(
        memory,
        gpu_utilization_ratio=scaled("gpu_percent", 0.01),
        memory_utilization_ratio=scaled("memory_percent", 0.01),
        power_watts=scaled("power_milliwatts", 1e-3),
        power_limit_watts=scaled("power_limit_milliwatts", 1e-3),
        energy_joules=scaled("energy_millijoules", 1e-3),
        temperature_celsius=values.get("temperature_celsius"),
        sm_clock_hertz=scaled("sm_clock_mhz", _MEGA),
        memory_clock_hertz=scaled("memory_clock_mhz", _MEGA),
        ecc_corrected_errors=values.get("ecc_corrected"),
        ecc_uncorrected_errors=values.get("ecc_uncorrected"),
        nvlink_receive_bytes=scaled("nvlink_receive_kibibytes", _KIBI),
        nvlink_transmit_bytes=scaled("nvlink_transmit_kibibytes", _KIBI),
        pcie_receive_bytes=values.get("pcie_receive_bytes"),
        pcie_transmit_bytes=values.get("pcie_transmit_bytes"),
        pcie_replays=values.get("pcie_replays"),
        throttle_reasons=None if reasons is None else tuple(name for name, bits in _REASONS if int(reasons) & bits),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
