"""One connection of a bounded HTTP server, and which of many to close for another."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

MAX_REQUEST_BYTES = 16 << 10
"""Maximum size of the request line and headers; Prometheus sends less than 1 KiB."""
_CHUNK_BYTES = 4096
_HEAD_END = re.compile(rb"\n\r?\n")


class HttpConnection:
    """A connection: it waits for a complete request, and is then served by a thread."""

    def __init__(self, connection: socket.socket, client: Any, timeout_s: float) -> None:
        self.connection = connection
        self.client = client
        self.group = group_of(str(client[0]))
        self.accepted_s = time.monotonic()
        self.deadline_s = self.accepted_s + timeout_s
        self.data = bytearray()
        self.shakes_hands = isinstance(connection, ssl.SSLSocket)

    def receive(self) -> bool:
        """Read what has arrived; return whether the request is complete. Raises OSError if there will be none."""
        try:
            if self.shakes_hands and isinstance(self.connection, ssl.SSLSocket):
                self.connection.do_handshake()
                self.shakes_hands = False
            while part := self.connection.recv(_CHUNK_BYTES):
                self.data += part
                if _HEAD_END.search(self.data):
                    return True
                if len(self.data) > MAX_REQUEST_BYTES:
                    raise ConnectionAbortedError("too large")
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        raise ConnectionResetError

    def head(self) -> bytes:
        """Return the request."""
        end = _HEAD_END.search(self.data)
        return bytes(self.data[: end.end()] if end else self.data)

    def end(self) -> None:
        """Shut the connection down, so that the thread that writes to it closes it."""
        with suppress(OSError):
            # That of an SSLSocket removes its TLS, so that its thread would continue without.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, with the end of TLS if it has begun."""
        if isinstance(self.connection, ssl.SSLSocket):
            # close_notify: the response is complete. That of the client is not waited for.
            with suppress(OSError, ValueError):
                self.connection.settimeout(0)
                self.connection.unwrap()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
        self.connection.close()


def surplus(open_: Iterable[HttpConnection], group: bytes, most: int, share: int) -> HttpConnection | None:
    """Return the connection to close for a new one of the group; None if there is room."""
    counts = Counter(one.group for one in open_)
    if counts[group] < share:
        if counts.total() < most:
            return None
        group = max(counts, key=counts.__getitem__)
    return next(one for one in open_ if one.group == group)


def group_of(address: str) -> bytes:
    """Return what counts as one address: of IPv6 the network of 64 bits, from which a host can choose any address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        return ip.ipv4_mapped.packed if ip.ipv4_mapped is not None else ip.packed[:8]
    return ip.packed
