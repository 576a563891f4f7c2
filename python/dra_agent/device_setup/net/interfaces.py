"""Network interfaces of the host: read from sysfs, changed through sysfs and one ioctl for names.

Source: Documentation/ABI/testing/sysfs-class-net, net/core/net-sysfs.c, netdevice(7).
"""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from dra_agent.device_setup.sysfs_writer import RealSysfsWriter, TimedWriter

_UP = 0x1
_SIOCSIFNAME = 0x8923


class Interfaces:
    """The interfaces of one host; thread-safe. All methods raise the OSError of the kernel."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._writes = TimedWriter(RealSysfsWriter(sysfs))

    def of(self, address: str) -> list[str] | None:
        """Return the names of the interfaces of a PCI device on the host; None if the device does not exist."""
        folder = self._sysfs / "bus/pci/devices" / address
        if not folder.is_dir():
            return None
        # The interface of a virtio adapter is one level below.
        return sorted(path.name for pattern in ("net/*", "virtio*/net/*") for path in folder.glob(pattern))

    def find(self, address: str, *names: str | None) -> str | None:
        """Return the current name of a device's interface that had one of these names; None if it is not here.

        A device can have other interfaces (ports, representors of its virtual functions), which are never returned.
        """
        present = self.of(address) or []
        known = next((name for name in names if name in present), None)
        # The kernel renames an interface that returns to the host if its name is in use.
        return present[0] if known is None and len(present) == 1 else known

    def hardware_address(self, name: str) -> str:
        """Return its hardware address ("02:fc:00:00:00:01")."""
        return self._read(name, "address")

    def mtu(self, name: str) -> int:
        """Return its MTU in bytes."""
        return int(self._read(name, "mtu"))

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the MTU; EINVAL if the adapter does not support it."""
        self._write(name, "mtu", str(mtu))

    def is_up(self, name: str) -> bool:
        """Return whether the link is up."""
        return bool(int(self._read(name, "flags"), 16) & _UP)

    def set_link_up(self, name: str, *, on: bool) -> None:
        """Set the link up or down."""
        flags = int(self._read(name, "flags"), 16)
        self._write(name, "flags", hex(flags | _UP if on else flags & ~_UP))

    def rename(self, old: str, new: str) -> None:
        """Rename it; the link must be down."""
        request = struct.pack("16s16s", old.encode(), new.encode()) + b"\0" * 8
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
            fcntl.ioctl(control, _SIOCSIFNAME, request)

    def _read(self, name: str, attribute: str) -> str:
        return (self._sysfs / "class/net" / name / attribute).read_text().strip()

    def _write(self, name: str, attribute: str, text: str) -> None:
        self._writes.write(name, f"class/net/{name}/{attribute}", f"{text}\n")
