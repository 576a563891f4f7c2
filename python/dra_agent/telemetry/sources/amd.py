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
        # 0: a GPU that uses the host's memory. Not verified: which APUs report 0.
        total = read_number(function, "mem_info_vram_total") or None
        used = read_number(function, "mem_info_vram_used") if total else None
        problems: list[str] = []
        metrics = _metrics(function, problems)
        corrected, uncorrected = _memory_errors(function, problems)
        sample = DeviceSample(
            gpu_utilization_ratio=read_number(function, "gpu_busy_percent", factor=_PERCENT_FACTOR),
            memory_utilization_ratio=read_number(function, "mem_busy_percent", factor=_PERCENT_FACTOR),
            memory_used_bytes=None if used is None else int(used),
            memory_limit_bytes=None if total is None else int(total),
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
