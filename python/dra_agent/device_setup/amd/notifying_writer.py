"""Writes of a mode that are announced, so that nobody takes a GPU for broken, or waits for it, while it is divided."""

from __future__ import annotations

from dra_agent.device_setup.sysfs_writer import SysfsWriter
from dra_agent.inventory.amd.mode_changes import ModeChanges


class NotifyingWriter:
    """The kernel; it announces from the write's own thread, so that one that hangs is announced for as long as it does.

    Nobody who tries again meanwhile begins its time anew.
    """

    def __init__(self, kernel: SysfsWriter, changes: ModeChanges, seconds: float) -> None:
        """`seconds`: how long a GPU may take until it has settled in its new mode."""
        self._kernel = kernel
        self._changes = changes
        self._seconds = seconds

    def write(self, path: str, text: str) -> None:
        """Write an attribute of a PCI device; OSError as the kernel answers."""
        address = path.split("/")[-2]
        self._changes.begin(address, self._seconds)
        try:
            self._kernel.write(path, text)
        except BaseException:
            self._changes.end(address)
            raise
        self._changes.answered(address)

    def read(self, path: str) -> str:
        """Read an attribute; OSError as the kernel answers."""
        return self._kernel.read(path)
