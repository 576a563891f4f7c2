"""A kernel that answers rtnetlink dumps with messages of a test."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest

GETLINK, GETADDR, GETROUTE, GETNEXTHOP = 18, 22, 26, 106
ERROR, DONE = 2, 3
MULTI, INTERRUPTED = 0x2, 0x10
_HEADER_BYTES = 16

Answer = Callable[[int], Sequence[bytes]] | Sequence[bytes]
"""The datagrams of a dump, or a function of the number of the try that returns them."""


def message(kind: int, body: bytes = b"", flags: int = MULTI) -> bytes:
    length = _HEADER_BYTES + len(body)
    return struct.pack("=IHHII", length, kind, flags, 1, 0) + body + bytes(-length % 4)


END = message(DONE, bytes(4))


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def number(value: int) -> bytes:
    return struct.pack("=I", value)


def link(index: int, name: str, *, kind: str | None = None, master: int = 0, below: int = 0) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, index, 0x1043, 0) + attribute(3, os.fsencode(name) + b"\0")
    if kind is not None:
        body += attribute(18, attribute(1, kind.encode() + b"\0"))
    body += attribute(10, number(master)) if master else b""
    return message(16, body + (attribute(5, number(below)) if below else b""))


def address(index: int, text: str, prefix: int, *, scope: int = 0, flags: int = 0x80) -> bytes:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    raw = socket.inet_pton(family, text)
    return message(20, struct.pack("=BBBBI", family, prefix, flags, scope, index) + attribute(1, raw))


def route(family: int, prefix: int, *attributes: bytes, table: int = 254, kind: int = 1, flags: int = 0) -> bytes:
    header = struct.pack("=BBBBBBBBI", family, prefix, 0, 0, table, 3, 0, kind, flags)
    return message(24, header + b"".join(attributes))


def nexthop(*attributes: bytes) -> bytes:
    return message(104, struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0) + b"".join(attributes))


class FakeKernel:
    """Answers each dump by the type of its request; one that is not named has no messages."""

    def __init__(self, answers: Mapping[int, Answer]) -> None:
        self._answers = answers
        self.requests: list[int] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
        real = socket.socket

        def connect(family: int = -1, *arguments: int) -> object:
            return _Link(self) if family == socket.AF_NETLINK else real(family, *arguments)

        monkeypatch.setattr(socket, "socket", connect)
        return self

    def answer(self, request: bytes) -> Iterable[bytes]:
        kind, family = struct.unpack_from("=4xH10xB", request)
        answer = self._answers.get(kind, (END,))
        tries = self.requests.count(kind)
        self.requests.append(kind)
        if callable(answer):
            return answer(tries)
        # Routes are asked for by family.
        return (END,) if kind == GETROUTE and family != socket.AF_INET else answer


class _Link:
    """The socket of one dump; without more datagrams the kernel is late."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel
        self._datagrams: Iterator[bytes] = iter(())

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *error: object) -> None:
        self._datagrams = iter(())

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def send(self, request: bytes) -> int:
        self._datagrams = iter(self._kernel.answer(request))
        return len(request)

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, object]:
        datagram = next(self._datagrams, None)
        if datagram is None:
            raise TimeoutError("timed out")
        return datagram[:size], [], socket.MSG_TRUNC if len(datagram) > size else 0, None
