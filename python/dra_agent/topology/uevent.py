"""The kernel's announcements of devices that come, go or change, and the socket that they arrive on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import TracebackType

from dra_agent import _native
from dra_agent.errors import PermanentError

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Uevent:
    """One announcement: an action on a device."""

    action: str
    """add, remove, bind, unbind, change, move, online or offline."""
    devpath: str
    """The device's path below the sysfs root: "/devices/pci0000:3a/0000:3a:00.0"."""
    subsystem: str
    """pci, net, infiniband, drm, ..."""

    @property
    def pci_address(self) -> str | None:
        """The PCI function that the device is, or is a part of; None for devices of no function."""
        return next((part for part in reversed(self.devpath.split("/")) if _PCI_ADDRESS.fullmatch(part)), None)

    def encode(self) -> bytes:
        """The kernel's wire form of this event."""
        fields = f"ACTION={self.action}\0DEVPATH={self.devpath}\0SUBSYSTEM={self.subsystem}\0"
        return f"{self.action}@{self.devpath}\0{fields}".encode()

    @classmethod
    def decode(cls, message: bytes) -> Uevent:
        """Read the wire form. Raises ValueError where a field is missing."""
        fields = dict(part.split("=", 1) for part in message.decode().split("\0") if "=" in part)
        try:
            return cls(fields["ACTION"], fields["DEVPATH"], fields["SUBSYSTEM"])
        except KeyError as missing:
            raise ValueError(f"no {missing.args[0]} in the uevent") from None


@dataclass(frozen=True, slots=True)
class UeventBatch:
    """The events of one read of the socket."""

    events: tuple[Uevent, ...]
    lost: bool
    """The kernel dropped events: a rescan is needed."""


class UeventSocket:
    """A non-blocking socket for an event loop: `loop.add_reader(socket.fileno(), ...)`.

    Raises PermanentError where the kernel or a sandbox refuses it; the topology is then kept current by rescans alone.
    Events reach only sockets in the host's network namespace.
    """

    def __init__(self) -> None:
        try:
            self._native = _native.UeventSocket()
        except OSError as error:
            raise PermanentError(
                f"cannot listen to uevents: {error.strerror or error}",
                hint="allow AF_NETLINK sockets (RestrictAddressFamilies= of the unit), or rely on rescans",
            ) from error

    def fileno(self) -> int:
        """The descriptor to watch for readability."""
        return self._native.fileno()

    def receive(self, limit: int = 256) -> UeventBatch:
        """At most `limit` of the waiting events; does not block."""
        messages, lost = self._native.receive(limit)
        return UeventBatch(tuple(Uevent.decode(message) for message in messages), lost)

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._native.close()

    def __enter__(self) -> UeventSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
