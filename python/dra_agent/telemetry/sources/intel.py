"""Intel GPUs: energy, average power, power limit, temperature, clock and throttling from files of i915 and xe.

Both drivers report how busy a GPU is through perf events, which are not read. Only Intel's builds of i915 have a file
with the memory in use.

The energy register has 32 bits, and the drivers add up its growth only when the file is read: at 1 kW it wraps after
4.4 minutes, and a longer interval loses energy (Linux, drivers/gpu/drm/i915/i915_hwmon.c, hwm_energy, and
drivers/gpu/drm/xe/xe_hwmon.c, xe_hwmon_energy_get).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.hwmon import find_sensors, read_number
from dra_agent.telemetry.intel_gt import read_gts
from dra_agent.telemetry.model import DeviceSample

MAX_AVERAGE_S = 120.0
"""Seconds between two samples from which the average power is not known: the register may have wrapped at 2 kW."""
_MICRO_FACTOR, _MILLI_FACTOR = 1e-6, 1e-3
_TEMPERATURES = {"xe": "temp2_input", "i915": "temp1_input"}
"""The file of the package temperature by driver. xe has no temp1, and temp3 is of the memory."""


def make(host: Host) -> IntelSource:
    """Create the source."""
    return IntelSource(host)


class IntelSource:
    """Reads whole GPUs by PCI address."""

    name = "sysfs-intel"

    def __init__(self, host: Host, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        """`elapsed` returns seconds of a clock that is never set."""
        self._functions = host.sysfs / "bus/pci/devices"
        self._regions = host.sysfs / "fs/cgroup/dmem.capacity"
        self._elapsed = elapsed
        self._energy: dict[str, tuple[float, float]] = {}
        """By device, of the sample before: when it was read, and joules."""

    def can_read(self, device: Device) -> bool:
        """Return whether the values are the device's: a virtual function has no sensors."""
        return "parent" not in device.identity and device.name == device_name("gpu", device.pci_address)

    def read(self, device: Device) -> DeviceSample | None:
        """Read one GPU (Linux, Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon)."""
        function = self._functions / device.pci_address
        before = self._energy.pop(device.name, None)
        gts = read_gts(function)
        energy = limit = temperature = power = None
        has_sensors = False
        for driver, name in _TEMPERATURES.items():
            if (sensors := find_sensors(function, driver)) is not None:
                has_sensors = True
                energy, limit = _energy(sensors)
                temperature = read_number(sensors, name, factor=_MILLI_FACTOR)
        if energy is not None:
            now = self._elapsed()
            power = _average(before, now, energy)
            self._energy[device.name] = now, energy
        used, total = _local_memory(function)
        if total is None:
            total = self._registered_memory(device.pci_address)
        sample = DeviceSample(
            memory_used_bytes=used,
            memory_limit_bytes=total,
            average_power_watts=power,
            energy_joules=energy,
            power_limit_watts=limit,
            temperature_celsius=temperature,
            sm_clock_hertz=gts.clock_hertz,
            throttle_reasons=gts.throttle_reasons,
        )
        return sample if has_sensors or sample != DeviceSample() else None

    def _registered_memory(self, address: str) -> int | None:
        """Return the device memory that xe has registered with the cgroup controller dmem, in regions of its tiles.

        The file has lines "drm/ADDRESS/vram0 BYTES" (Linux 6.14, Documentation/admin-guide/cgroup-v2.rst, "DMEM").
        """
        try:
            lines = [line.split() for line in self._regions.read_text().splitlines()]
        except (FileNotFoundError, NotADirectoryError):
            return None
        own = f"drm/{address}/vram"
        return sum(int(line[1]) for line in lines if len(line) == 2 and line[0].startswith(own)) or None

    def close(self) -> None:
        """Nothing is open."""


def _energy(sensors: Path) -> tuple[float | None, float | None]:
    """Return the energy in joules and the power limit in watts: of the card, or where xe only has it, of the package.

    Both are of the same part. energy1 and power1 are of the card, energy2 and power2 of the package, which is a part
    of the card.
    """
    number = 2 if not (sensors / "energy1_input").exists() and (sensors / "energy2_input").exists() else 1
    # A limit of 0 is a limit that is disabled.
    limit = read_number(sensors, f"power{number}_max", factor=_MICRO_FACTOR) or None
    return read_number(sensors, f"energy{number}_input", factor=_MICRO_FACTOR), limit


def _local_memory(function: Path) -> tuple[int | None, int | None]:
    """Return the bytes of local memory in use, and all of it, from files that Intel's builds of i915 have.

    Both are sums over the regions of the card (i915_sysfs.c, lmem_total_bytes_show and lmem_avail_bytes_show).
    """
    for card in function.glob("drm/card[0-9]*"):
        total, available = (read_number(card, f"lmem_{name}_bytes") for name in ("total", "avail"))
        if total:
            return None if available is None else int(total - available), int(total)
    return None, None


def _average(before: tuple[float, float] | None, now: float, joules: float) -> float | None:
    """Return the average power in watts since the sample before; None if it is not known."""
    if before is None or not 0 < now - before[0] <= MAX_AVERAGE_S or joules < before[1]:
        return None
    return (joules - before[1]) / (now - before[0])
