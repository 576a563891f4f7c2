"""A TCP address that does not respond to connections, like one whose packets a firewall drops."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dra_agent.tcp_connect import Address


@contextmanager
def silent_address() -> Iterator[Address]:
    """Yield the address of a listener with a full queue: the kernel drops all further requests to connect (tcp(7))."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield address_of(listener.getsockname())


def address_of(place: tuple[Any, ...]) -> Address:
    """Return the address as getaddrinfo does."""
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place


class HungLookup:
    """Lookups of names that wait until `answered` is set, and then fail; those of numbers fail at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered = threading.Event()
        self.calls: list[tuple[Any, ...]] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._hang)

    def _hang(self, *arguments: Any, **options: Any) -> Any:
        if not options.get("flags", 0) & socket.AI_NUMERICHOST:
            self.calls.append(arguments)
            self.answered.wait()
        raise socket.gaierror(socket.EAI_NONAME, "no such name")


def resolve(monkeypatch: pytest.MonkeyPatch, name: str, addresses: Sequence[Address]) -> None:
    """Let `name` have these addresses for every port."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != name:
            return look_up(host, *arguments, **options)
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        return list(addresses)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
