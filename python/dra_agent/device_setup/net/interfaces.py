"""Network interfaces of the host as the kernel shows and takes them: sysfs, and one ioctl for a name.

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
    """Those of one host; safe to use from several threads. Everything raises OSError as the kernel answers."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._writes = TimedWriter(RealSysfsWriter(sysfs))

    def of(self, address: str) -> list[str] | None:
        """Name the interfaces that a PCI device has on the host now; None where there is no such device."""
        folder = self._sysfs / "bus/pci/devices" / address
        if not folder.is_dir():
            return None
        # A virtio adapter has its interface one level further down.
        return sorted(path.name for pattern in ("net/*", "virtio*/net/*") for path in folder.glob(pattern))

    def find(self, address: str, *names: str | None) -> str | None:
        """Say what a device's interface is called now that had one of these names; None where it is not on the host.

        A device can have others too (ports, representors of its virtual functions), which are never meant.
        """
        present = self.of(address) or []
        known = next((name for name in names if name in present), None)
        # The kernel gives one that comes back another name where its own was taken.
        return present[0] if known is None and len(present) == 1 else known

    def hardware_address(self, name: str) -> str:
        """Give what it calls itself on its link ("02:fc:00:00:00:01")."""
        return self._read(name, "address")

    def mtu(self, name: str) -> int:
        """Give the bytes of its largest packet."""
        return int(self._read(name, "mtu"))

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set them; EINVAL where the adapter does not take as many."""
        self._write(name, "mtu", str(mtu))

    def is_up(self, name: str) -> bool:
        """Tell whether somebody has switched it on."""
        return bool(int(self._read(name, "flags"), 16) & _UP)

    def set_link_up(self, name: str, *, on: bool) -> None:
        """Switch it on or off."""
        flags = int(self._read(name, "flags"), 16)
        self._write(name, "flags", hex(flags | _UP if on else flags & ~_UP))

    def rename(self, old: str, new: str) -> None:
        """Give it another name; it must be switched off."""
        request = struct.pack("16s16s", old.encode(), new.encode()) + b"\0" * 8
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
            fcntl.ioctl(door, _SIOCSIFNAME, request)

    def _read(self, name: str, attribute: str) -> str:
        return (self._sysfs / "class/net" / name / attribute).read_text().strip()

    def _write(self, name: str, attribute: str, text: str) -> None:
        self._writes.write(name, f"class/net/{name}/{attribute}", f"{text}\n")
