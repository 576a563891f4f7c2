"""Requests over netlink whose attributes pyroute2 does not know, or does not keep as the kernel returned them.

Source: Documentation/userspace-api/netlink/intro.rst.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from types import TracebackType

from dra_agent import netlink_dump

ROUTE, GENERIC = 0, 16
"""NETLINK_ROUTE and NETLINK_GENERIC."""
_REQUEST, _ACK = 0x1, 0x4
_ERROR_TYPE = 2
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_RECEIVE_BYTES = 1 << 18
_TIMEOUT_S = 10.0


class Connection:
    """A netlink socket in the network namespace of the calling thread."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def request(self, kind: int, body: bytes, flags: int = 0) -> list[bytes]:
        """Return the bodies of the messages before the acknowledgment; raises the kernel's OSError."""
        self._sequence += 1
        self._socket.send(
            _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, self._sequence, 0) + body
        )
        found: list[bytes] = []
        while True:
            data = self._socket.recv(_RECEIVE_BYTES)
            while len(data) >= _HEADER.size:
                length, received, _, sequence, _ = _HEADER.unpack_from(data)
                message, data = data[_HEADER.size : length], data[_aligned(length) :]
                if sequence != self._sequence:
                    continue
                if received != _ERROR_TYPE:
                    found.append(message)
                    continue
                number = -_ERROR.unpack_from(message)[0]
                if number:
                    raise OSError(number, os.strerror(number))
                return found


def attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    """Return an attribute, padded."""
    return netlink_dump.attribute(kind | (_NESTED if nested else 0), value)


def nest(kind: int, parts: Iterable[bytes]) -> bytes:
    """Return an attribute that contains others."""
    return attribute(kind, b"".join(parts), nested=True)


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes of a message by their type, without its flags."""
    found: dict[int, bytes] = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
