"""Reads sensors of a PCI function from its folder in sysfs, in base units.

Units of the kernel: temperatures in millidegrees, power in microwatts, energy in microjoules, frequencies in hertz
(Linux, Documentation/hwmon/sysfs-interface.rst).
"""

from __future__ import annotations

import errno
from pathlib import Path

_UNKNOWN = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.ENODEV, errno.EPERM}
)
"""Errors of sensors that a device does not have, or not while it sleeps."""


def read_number(folder: Path, *names: str, factor: float = 1.0) -> float | None:
    """Return the first of the files that has a value, times `factor`; None if none has.

    Raises:
        OSError, ValueError: A file cannot be read, or is not a number.
    """
    for name in names:
        try:
            return int((folder / name).read_text()) * factor
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
    return None


def find_sensors(function: Path, *drivers: str) -> Path | None:
    """Return the folder of a function's sensors by the name of its driver; None if it has none.

    The name matters: i915 also has sensors of a part of the device, as `i915_gt0` (Linux,
    Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon).
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
