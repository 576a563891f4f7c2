"""Dumps of the kernel that are not complete."""

from __future__ import annotations

import errno
import os
import re
import struct
from typing import Any

import pytest
from pyroute2 import IPRoute

from dra_agent import netlink

LINK, DONE = 16, 3
MULTI, INTERRUPTED = 0x2, 0x10


def part(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, MULTI | flags, 1, 0) + body


FIRST = part(LINK, 0, bytes(16))


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (FIRST + part(DONE, 0, struct.pack("=i", -errno.ENOBUFS)), errno.ENOBUFS),
        (FIRST + part(DONE, INTERRUPTED, bytes(4)), errno.EINTR),
        (FIRST + part(LINK, INTERRUPTED, bytes(16)) + part(DONE, 0, bytes(4)), errno.EINTR),
    ],
    ids=["failed in the middle", "changed before the end", "changed meanwhile"],
)
def test_an_incomplete_dump_is_an_error(message: bytes, number: int) -> None:
    with netlink.connect() as network:
        assert len(list(network.marshal.parse(FIRST + part(DONE, 0, bytes(4))))) == 2
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as failed:
            list(network.marshal.parse(message))
        assert failed.value.errno == number


def test_a_dump_of_the_kernel_is_complete() -> None:
    with netlink.connect() as network:
        assert "lo" in {link.get_attr("IFLA_IFNAME") for link in netlink.dump(network.get_links)}


def test_a_dump_is_repeated_after_a_change_and_not_without_end() -> None:
    tries: list[int] = []

    def query(changes: int) -> list[str]:
        tries.append(changes)
        if len(tries) <= changes:
            raise InterruptedError
        return ["eth0"]

    assert netlink.dump(lambda: query(4)) == ["eth0"]
    tries.clear()
    with pytest.raises(InterruptedError):
        netlink.dump(lambda: query(100))
    assert len(tries) == 5


def test_a_socket_is_usable_after_an_interrupted_dump() -> None:
    with IPRoute() as network:
        parser_of = network.marshal.get_parser
        ends: list[int] = []

        def interrupted_once(kind: int, flags: int, sequence: int) -> Any:
            def parse(data: bytes, offset: int, length: int) -> Any:
                if kind == DONE and not ends:
                    ends.append(sequence)
                    raise InterruptedError
                return parser_of(kind, flags, sequence)(data, offset, length)

            return parse

        network.marshal.get_parser = interrupted_once
        assert "lo" in {link.get_attr("IFLA_IFNAME") for link in netlink.dump(network.get_links)}
        assert ends
