"""Intel GPUs: energy, average power, power limit, temperature, clock and throttling from files of i915 and xe.

Both drivers report how busy a GPU is through perf events, which are not read. Only Intel's builds of i915 have a file
with the memory in use.

The energy register has 32 bits, and the drivers add up its growth only when the file is read: at 1 kW it wraps after
4.4 minutes, and a longer interval loses energy (Linux, drivers/gpu/drm/i915/i915_hwmon.c, hwm_energy, and
drivers/gpu/drm/xe/xe_hwmon.c, xe_hwmon_energy_get).

Clock and throttling are of GTs. xe has a folder for each GT of each tile, `tileN/gtN` (Linux, drivers/gpu/drm/xe/
xe_gt_freq.c, "DOC: Xe GT Frequency Management", and xe_gt_throttle.c, "DOC: Xe GT Throttle"), i915 `drm/cardN/gt/gtN`
(drivers/gpu/drm/i915/gt/intel_gt_sysfs_pm.c). Virtual functions have none of these files. A GT that only has media
engines is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.hwmon import find_sensors, read_number
from dra_agent.telemetry.model import DeviceSample

MAX_AVERAGE_S = 120.0
"""Seconds between two samples from which the average power is not known: the register may have wrapped at 2 kW."""
_MICRO_FACTOR, _MILLI_FACTOR, _MEGA_FACTOR = 1e-6, 1e-3, 1e6
_TEMPERATURES = {"xe": "temp2_input", "i915": "temp1_input"}
"""The file of the package temperature by driver. xe has no temp1, and temp3 is of the memory."""
_THROTTLE_FILES = {
    "power_cap": ("pl1", "pl2", "psys_pl1", "psys_pl2"),
    "thermal": ("thermal", "ratl", "vr_thermalert", "soc_thermal", "soc_avg_thermal", "mem_thermal", "vr_thermal"),
    "hardware_slowdown": ("prochot", "pl4", "psys_crit", "iccmax", "vr_tdc", "fastvmode"),
}
"""Files of each reason. PL1 and PL2 limit power; PL4, Iccmax, TDC and FastVMode current, like AMD's throttlers of
current, which are a slowdown too. RATL is the running average thermal limit. `p0_freq` is not a reason: P0 is the
highest frequency that the GPU has."""


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
        gts = _read_gts(function)
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


class _GtState(NamedTuple):
    """The GTs of one GPU that compute; None: the driver does not report it."""

    clock_hertz: float | None
    """The highest one, as in i915's files of the whole device; 0 while the GPU sleeps (RC6)."""
    throttle_reasons: tuple[str, ...] | None
    """Reasons of any of them."""


class _Gt(NamedTuple):
    folder: Path
    clock: str
    """The file of its clock, in MHz."""
    status: str
    """1 while any reason lowers the clock."""
    reason: str
    """The beginning of the names of files of reasons."""


def _read_gts(function: Path) -> _GtState:
    """Read the GTs of a GPU, whose PCI function has this folder.

    Raises:
        OSError, ValueError: A file cannot be read, or is not a number.
    """
    clocks: list[float] = []
    reasons: set[str] | None = None
    for gt in (*_xe(function), *_i915(function)):
        clock = read_number(gt.folder, gt.clock, factor=_MEGA_FACTOR)
        if clock is not None:
            clocks.append(clock)
        status = read_number(gt.folder, gt.status)
        if status is None:
            continue
        reasons = reasons or set()
        if status:
            reasons |= {
                name
                for name, files in _THROTTLE_FILES.items()
                if any(read_number(gt.folder, f"{gt.reason}{file}") for file in files)
            }
    return _GtState(
        max(clocks, default=None),
        None if reasons is None else tuple(name for name in _THROTTLE_FILES if name in reasons),
    )


def _xe(function: Path) -> Iterator[_Gt]:
    for folder in sorted(function.glob("tile[0-9]*/gt[0-9]*")):
        # Names of classes of engines (xe_hw_engine_class_sysfs.c); the media GT has vcs and vecs.
        if any((folder / "engines" / name).is_dir() for name in ("ccs", "rcs")):
            yield _Gt(folder, "freq0/act_freq", "freq0/throttle/status", "freq0/throttle/reason_")


def _i915(function: Path) -> Iterator[_Gt]:
    # gt1 is the media GT of Meteor Lake, the only GPU of mainline i915 with two.
    for folder in function.glob("drm/card[0-9]*/gt/gt0"):
        yield _Gt(folder, "rps_act_freq_mhz", "throttle_reason_status", "throttle_reason_")
