"""Network interfaces of the host: read from sysfs, and changed through sysfs.

The kernel's names are bytes. Those here are decoded as file names (os.fsdecode), so each one has a path.

Source: Documentation/ABI/testing/sysfs-class-net, net/core/net-sysfs.c.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from dra_agent.device_setup.interface_use import interfaces_of
from dra_agent.device_setup.sysfs_writer import SysfsWriter, TimedWriter

_UP = 0x1
_PORT = ("dev_id", "dev_port", "phys_port_name")


class Interfaces:
    """The interfaces of one host; thread-safe. All methods raise the OSError of the kernel."""

    def __init__(self, sysfs: Path, kernel: SysfsWriter) -> None:
        """`kernel` is what the host's other set-ups write through; a simulated host has its own."""
        self._sysfs = sysfs
        self.folder = sysfs / "class/net"
        """The folder with all interfaces."""
        self._writes = TimedWriter(kernel)

    def of(self, address: str) -> list[str] | None:
        """Return the names of the interfaces of a PCI device on the host; None if the device does not exist."""
        is_here = (self._sysfs / "bus/pci/devices" / address).is_dir()
        return interfaces_of(self._sysfs, address) if is_here else None

    def find(self, address: str, port: str, *names: str | None) -> str | None:
        """Return the current name of a device's interface; None if it is not here.

        It is the one of this port, or had one of these names. A device can have other interfaces (ports, representors
        of its virtual functions), which are never returned.
        """
        present = self.of(address) or []
        # Under any name: a container can rename it, and so does the kernel if its name is in use when it returns.
        same = [name for name in present if self.port(name) == port] if port else present
        # A driver of another version can report another port.
        known = next((name for name in names if name in (same or present)), None)
        return same[0] if known is None and len(same) == 1 else known

    def port(self, name: str) -> str:
        """Return the port of its device, which a container cannot change; "" if it cannot be read."""
        values = [self._optional(name, attribute) for attribute in _PORT]
        return " ".join(values) if any(values) else ""

    def index(self, name: str) -> int:
        """Return its index in the agent's network namespace."""
        return socket.if_nametoindex(name)

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

    def _read(self, name: str, attribute: str) -> str:
        return (self.folder / name / attribute).read_text().strip()

    def _optional(self, name: str, attribute: str) -> str:
        try:
            return self._read(name, attribute)
        except (OSError, ValueError):
            return ""

    def _write(self, name: str, attribute: str, text: str) -> None:
        self._writes.write(name, f"class/net/{name}/{attribute}", f"{text}\n")


def shown(name: str) -> str:
    """Return a name for a message, which must be text."""
    return os.fsencode(name).decode(errors="backslashreplace")
