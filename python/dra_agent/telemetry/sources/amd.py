"""AMD GPUs: amdgpu's files and sensors in sysfs, and its table gpu_metrics for energy and throttling.

The activity of partitions is in that table too, and is not read.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.amd_gpu_metrics import MAX_BYTES, GpuMetrics, decode
from dra_agent.telemetry.hwmon import UNKNOWN_ERRORS, find_sensors, read_number
from dra_agent.telemetry.model import DeviceSample

log = logging.getLogger(__name__)

_PERCENT_FACTOR, _MICRO_FACTOR, _MILLI_FACTOR = 1e-2, 1e-6, 1e-3


def make(host: Host) -> AmdSource:
    """Create the source."""
    return AmdSource(host)


class AmdSource:
    """Reads whole GPUs by PCI address."""

    name = "sysfs-amdgpu"

    def __init__(self, host: Host) -> None:
        self._functions = host.sysfs / "bus/pci/devices"
        self._residencies: dict[str, dict[str, int]] = {}
        """By device, of the sample before."""
        self._logged: set[str] = set()

    def can_read(self, device: Device) -> bool:
        """Return whether the values are the device's: those of a partition are of its GPU."""
        return "parent" not in device.identity and device.name == device_name("gpu", device.pci_address)

    def read(self, device: Device) -> DeviceSample | None:
        """Read one GPU (Linux, drivers/gpu/drm/amd/pm/amdgpu_pm.c, "DOC: hwmon", "DOC: gpu_busy_percent").

        power1_input is read where power1_average does not exist. On APUs both include the CPU.
        """
        function = self._functions / device.pci_address
        # 0: a GPU that uses the host's memory. Not verified: which APUs report 0.
        total = read_number(function, "mem_info_vram_total") or None
        used = read_number(function, "mem_info_vram_used") if total else None
        metrics = self._metrics(function)
        sample = DeviceSample(
            gpu_utilization_ratio=read_number(function, "gpu_busy_percent", factor=_PERCENT_FACTOR),
            memory_utilization_ratio=read_number(function, "mem_busy_percent", factor=_PERCENT_FACTOR),
            memory_used_bytes=None if used is None else int(used),
            memory_limit_bytes=None if total is None else int(total),
            energy_joules=metrics.energy_joules,
            throttle_reasons=self._throttle_reasons(device.name, metrics),
        )
        sensors = find_sensors(function, "amdgpu")
        if sensors is None:
            return sample
        return msgspec.structs.replace(
            sample,
            power_watts=read_number(sensors, "power1_average", "power1_input", factor=_MICRO_FACTOR),
            power_limit_watts=read_number(sensors, "power1_cap", factor=_MICRO_FACTOR),
            # PP_TEMP_EDGE, or where it has no such sensor, PP_TEMP_JUNCTION, its hottest point.
            temperature_celsius=read_number(sensors, "temp1_input", "temp2_input", factor=_MILLI_FACTOR),
            sm_clock_hertz=read_number(sensors, "freq1_input"),
            memory_clock_hertz=read_number(sensors, "freq2_input"),
        )

    def _metrics(self, function: Path) -> GpuMetrics:
        """Read the table; a version that is not known is named once, and the other values do not depend on it."""
        try:
            with (function / "gpu_metrics").open("rb") as file:
                return decode(file.read(MAX_BYTES))
        except OSError as error:
            if error.errno not in UNKNOWN_ERRORS:
                raise
        except ValueError as error:
            if str(error) not in self._logged:
                self._logged.add(str(error))
                log.warning("energy and throttling of AMD GPUs are not known", extra={"reason": str(error)})
        return GpuMetrics()

    def _throttle_reasons(self, name: str, metrics: GpuMetrics) -> tuple[str, ...] | None:
        """Return the present reasons, or those since the sample before; None before the second sample."""
        if metrics.residencies is None:
            return metrics.throttle_reasons
        before = self._residencies.get(name)
        self._residencies[name] = metrics.residencies
        if before is None:
            return None
        # One that went back was reset with the driver.
        return tuple(reason for reason, total in metrics.residencies.items() if total > before.get(reason, total))

    def close(self) -> None:
        """Nothing is open."""
