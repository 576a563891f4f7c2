"""Questions to the kernel about one network interface of this process's network namespace (netdevice(7))."""

from __future__ import annotations

import fcntl
import os
import socket

_SIOCGIFHWADDR = 0x8927
"""The hardware address of an interface, by its name."""


def is_of_device(name: str, address: str) -> bool:
    """Return True if the agent's network namespace has an interface with this name and hardware address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, os.fsencode(name).ljust(32, b"\0"))
            # struct ifreq: 16 bytes name, 2 bytes family, then the address; InfiniBand's is longer than there is room.
            return answer[18:24] == bytes.fromhex(address.replace(":", ""))[:6]
        except (OSError, ValueError):
            return False
