"""Reads sensors of a PCI function from its folder in sysfs, in base units.

Units of the kernel: temperatures in millidegrees, power in microwatts, energy in microjoules, frequencies in hertz
(Linux, Documentation/hwmon/sysfs-interface.rst).
"""

from __future__ import annotations

import errno
from pathlib import Path

UNKNOWN_ERRORS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM}
)
"""Errors of sensors that a device does not have or that are off (ENODATA: sysfs-interface.rst), or that amdgpu returns
while it is reset or suspended (EPERM: amdgpu_pm.c)."""


def read_number(folder: Path, *names: str, factor: float = 1.0) -> float | None:
    """Return the first of the files that has a value, times `factor`; None if none has.

    Raises:
        OSError, ValueError: A file cannot be read, or is not a number.
    """
    for name in names:
        try:
            return int((folder / name).read_text()) * factor
        except OSError as error:
            if error.errno not in UNKNOWN_ERRORS:
                raise
    return None


def find_sensors(function: Path, *drivers: str) -> Path | None:
    """Return the folder of a function's sensors by the name of its driver; None if it has none.

    The name matters: i915 also has one folder for each GT, `i915_gtN`, whose energy is of that part only (Linux,
    Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon, energy1_input).
    """
    try:
        folders = sorted((function / "hwmon").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    for folder in folders:
        try:
            if (folder / "name").read_text().strip() in drivers:
                return folder
        except OSError:
            continue
    return None
