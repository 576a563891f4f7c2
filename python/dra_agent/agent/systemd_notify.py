"""Tells systemd how the agent does: sd_notify(3) without its library. Silent where nobody listens."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


class Notifier:
    """The way to the service manager that started this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC."""
        variables = os.environ if environment is None else environment
        path = variables.get("NOTIFY_SOCKET", "")
        # "@" stands for the abstract namespace's leading zero byte.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec = variables.get("WATCHDOG_USEC", "")
        meant = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(usec) / 1e6 if usec.isdigit() and meant else None
        """Seconds within which the manager wants a sign of life; None where it wants none."""

    def send(self, *states: str) -> None:
        """Send states such as READY; a manager that cannot be reached is no reason to stop."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.sendto("\n".join(states).encode(), self._address)

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self.send(f"STATUS={text}")
