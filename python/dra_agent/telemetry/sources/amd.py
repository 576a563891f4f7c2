"""AMD GPUs: amdgpu's files and sensors in sysfs, and its table gpu_metrics for energy, throttling, and links.

The activity of partitions is in that table too, and is not read. Two files of PCIe are not read either:

- `pcie_bw` has numbers of packets, whose size is not known, and each read takes a second, in which the driver counts
  (Linux, drivers/gpu/drm/amd/amdgpu/soc15.c, soc15_get_pcie_usage). GPUs since RDNA and MI300 do not have it.
- `pcie_replay_count` is 0 for GPUs that do not count replays, if the kernel does not check that before it creates the
  file (amdgpu_nbio_is_replay_cnt_supported; nv.c, nv_get_pcie_replay_count).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.amd_gpu_metrics import MAX_BYTES, GpuMetrics, decode
from dra_agent.telemetry.hwmon import UNKNOWN_ERRORS, find_sensors, read_number
from dra_agent.telemetry.model import DeviceSample, IncompleteError

_PERCENT_FACTOR, _MICRO_FACTOR, _MILLI_FACTOR = 1e-2, 1e-6, 1e-3
_MEMORY_ERRORS = "ras/umc_err_count"
"""Errors of the memory controllers (Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, "DOC: AMDGPU RAS sysfs Error Count
Interface"). Other blocks have files too; their errors are not of device memory."""
_ERROR_LINE = re.compile(r"^(ue|ce): ([0-9]+)$", re.MULTILINE)
_NOT_NOW = "Query currently inaccessible"
"""What the file has while the GPU is reset."""


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

    def can_read(self, device: Device) -> bool:
        """Return whether the values are the device's: those of a partition are of its GPU."""
        return "parent" not in device.identity and device.name == device_name("gpu", device.pci_address)

    def read(self, device: Device) -> DeviceSample | None:
        """Read one GPU (Linux, drivers/gpu/drm/amd/pm/amdgpu_pm.c, "DOC: hwmon", "DOC: gpu_busy_percent").

        power1_input is read where power1_average does not exist. On APUs both include the CPU.
        """
        function = self._functions / device.pci_address
        used, total = _memory(device, function)
        problems: list[str] = []
        metrics = _metrics(function, problems)
        corrected, uncorrected = _memory_errors(function, problems)
        sample = DeviceSample(
            gpu_utilization_ratio=read_number(function, "gpu_busy_percent", factor=_PERCENT_FACTOR),
            memory_utilization_ratio=read_number(function, "mem_busy_percent", factor=_PERCENT_FACTOR),
            memory_used_bytes=used,
            memory_limit_bytes=total,
            energy_joules=metrics.energy_joules,
            throttle_reasons=self._throttle_reasons(device.name, metrics),
            ecc_corrected_errors=corrected,
            ecc_uncorrected_errors=uncorrected,
            xgmi_read_bytes=metrics.xgmi_read_bytes,
            xgmi_write_bytes=metrics.xgmi_write_bytes,
            pcie_replays=metrics.pcie_replays,
        )
        sensors = find_sensors(function, "amdgpu")
        if sensors is not None:
            sample = msgspec.structs.replace(
                sample,
                power_watts=read_number(sensors, "power1_average", "power1_input", factor=_MICRO_FACTOR),
                power_limit_watts=read_number(sensors, "power1_cap", factor=_MICRO_FACTOR),
                # PP_TEMP_EDGE, or where it has no such sensor, PP_TEMP_JUNCTION, its hottest point.
                temperature_celsius=read_number(sensors, "temp1_input", "temp2_input", factor=_MILLI_FACTOR),
                sm_clock_hertz=read_number(sensors, "freq1_input"),
                memory_clock_hertz=read_number(sensors, "freq2_input"),
            )
        if problems:
            raise IncompleteError(sample, "; ".join(problems))
        return sample

    def _throttle_reasons(self, name: str, metrics: GpuMetrics) -> tuple[str, ...] | None:
        """Return the present reasons, or those since the sample before; None before the second sample."""
        before = self._residencies.pop(name, None)
        if metrics.residencies is None:
            return metrics.throttle_reasons
        self._residencies[name] = metrics.residencies
        if before is None:
            return None
        # One that went back was reset with the driver.
        return tuple(reason for reason, total in metrics.residencies.items() if total > before.get(reason, total))

    def close(self) -> None:
        """Nothing is open."""


def _memory(device: Device, function: Path) -> tuple[int | None, int | None]:
    """Return the used memory and all of it, in bytes.

    An APU has two kinds: a carve-out ("VRAM") and the host's memory (GTT). Compute uses the host's unless the carve-out
    is larger (Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_ttm.c, apu_prefer_gtt); KFD then reports TTM's limit, which is
    the capacity of the device. `mem_info_gtt_total` is another limit, which can be above it.
    """
    total = _whole(read_number(function, "mem_info_vram_total"))
    integrated, capacity = device.attributes.get("integrated"), device.capacity.get("memory")
    if integrated is not None and integrated.value is True and capacity is not None:
        of_compute = _native.quantity_value(capacity.value)
        if of_compute != total:
            return _whole(read_number(function, "mem_info_gtt_used")), of_compute
    return (_whole(read_number(function, "mem_info_vram_used")), total) if total else (None, None)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _metrics(function: Path, problems: list[str]) -> GpuMetrics:
    """Read the table; other values do not depend on whether its version is known."""
    try:
        with (function / "gpu_metrics").open("rb") as file:
            return decode(file.read(MAX_BYTES))
    except OSError as error:
        if error.errno not in UNKNOWN_ERRORS:
            raise
    except ValueError as error:
        problems.append(f"energy and throttling are not known: {error}")
    return GpuMetrics()


def _memory_errors(function: Path, problems: list[str]) -> tuple[int | None, int | None]:
    """Return the corrected and uncorrected memory errors since the driver was loaded."""
    try:
        text = (function / _MEMORY_ERRORS).read_text()
    except OSError as error:
        if error.errno not in UNKNOWN_ERRORS:
            raise
        return None, None
    # Some versions have a third line, "de", with errors that are deferred: neither corrected nor consumed.
    counts = {name: int(count) for name, count in _ERROR_LINE.findall(text)}
    if not counts and _NOT_NOW not in text:
        problems.append(f"memory errors are not known: {_MEMORY_ERRORS} has {text[:80]!r}")
    return counts.get("ce"), counts.get("ue")
