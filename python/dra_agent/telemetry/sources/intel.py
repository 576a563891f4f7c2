"""Intel GPUs: energy and power limit from the sensors of i915 and xe.

Both drivers report how busy a GPU is through perf events, which are not read.

The energy register has 32 bits, and the drivers add up its growth only when the file is read: at 1 kW it wraps after
4.4 minutes, and a longer interval loses energy (Linux, drivers/gpu/drm/i915/i915_hwmon.c, hwm_energy, and
drivers/gpu/drm/xe/xe_hwmon.c, xe_hwmon_energy_get).
"""

from __future__ import annotations

from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.telemetry.hwmon import find_sensors, read_number
from dra_agent.telemetry.model import DeviceSample

_MICRO_FACTOR = 1e-6


def make(host: Host) -> IntelSource:
    """Create the source."""
    return IntelSource(host)


class IntelSource:
    """Reads whole GPUs by PCI address."""

    name = "sysfs-intel"

    def __init__(self, host: Host) -> None:
        self._functions = host.sysfs / "bus/pci/devices"

    def can_read(self, device: Device) -> bool:
        """Return whether the values are the device's: a virtual function has no sensors."""
        return "parent" not in device.identity and device.name == device_name("gpu", device.pci_address)

    def read(self, device: Device) -> DeviceSample | None:
        """Read one GPU (Linux, Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon)."""
        sensors = find_sensors(self._functions / device.pci_address, "i915", "xe")
        if sensors is None:
            return None
        # power1_max in the same files: 0 if the limit is disabled.
        limit = read_number(sensors, "power1_max", factor=_MICRO_FACTOR) or None
        return DeviceSample(
            energy_joules=read_number(sensors, "energy1_input", factor=_MICRO_FACTOR), power_limit_watts=limit
        )

    def close(self) -> None:
        """Nothing is open."""
