"""Looks up names of servers on threads: getaddrinfo(3) may wait for a minute, and takes no deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.tcp_connect import Address, connect

MAX_LOOKUPS = 2
"""Lookups of one client that run at once: of its server, and of another one after a change of the configuration."""


class NameLookup:
    """A lookup that hangs is waited for again, and not started again."""

    def __init__(self) -> None:
        self._executor = DaemonExecutor(MAX_LOOKUPS, "lookup", kept=1)
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[Sequence[Address]]] = {}

    def connect(self, host: str, port: int, deadline: Deadline) -> socket.socket:
        """Return a blocking socket that is connected to a host. Raises OSError, and TimeoutError at the deadline."""
        return connect(self._addresses(host, port, deadline), deadline)

    def _addresses(self, host: str, port: int, deadline: Deadline) -> Sequence[Address]:
        with suppress(socket.gaierror):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        with self._lock:
            lookup = self._running.get((host, port))
            if lookup is None:
                lookup = self._running[host, port] = self._executor.submit(self._look_up, host, port)
        return lookup.result(deadline.remaining())

    def _look_up(self, host: str, port: int) -> Sequence[Address]:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            with self._lock:
                self._running.pop((host, port), None)
