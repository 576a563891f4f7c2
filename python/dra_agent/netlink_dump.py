"""Dumps of the kernel's network configuration over rtnetlink (rtnetlink(7), linux/netlink.h), in this process.

Without pyroute2, which costs more memory than the rest of the agent; a process for each query would be too slow.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

_NETLINK_ROUTE = 0
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_TYPE_MASK = 0x3FFF
"""Without NLA_F_NESTED and NLA_F_NET_BYTEORDER."""
_BUFFER_BYTES = 1 << 16
"""The kernel sends at most 32 KiB of a dump at once."""
_MAX_TRIES = 5
_HOP = struct.Struct("=HBBi")
"""struct rtnexthop."""


def dump(request: int, body: bytes, read: Callable[[Iterator[bytes]], _T], *, deadline: float) -> _T:
    """Return what `read` makes of a dump's messages, each without its header; `request` is RTM_GETLINK or another.

    `read` may stop before the last message. It is called again if the kernel's state changed meanwhile, since a message
    may be missing then. `deadline`: in seconds of `time.monotonic()`.

    Raises OSError if the kernel does not return all: its own error, EINTR after the last try, TimeoutError, and EBADMSG
    for a message that is damaged or truncated.
    """
    for left in reversed(range(_MAX_TRIES)):
        try:
            # A dump that is given up ends with its socket.
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE) as link:
                return read(_messages(link, request, body, deadline))
        except InterruptedError:
            if not left:
                raise
        except (struct.error, ValueError) as error:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG)) from error
    raise AssertionError("the last try returns or raises")


def attributes(message: bytes, offset: int) -> dict[int, bytes]:
    """Return the attributes of a message from `offset` on; ValueError if they are damaged."""
    found: dict[int, bytes] = {}
    end, header, mask = len(message), _ATTRIBUTE.size, _TYPE_MASK
    # Without a call for each: a link has about fifty attributes, and a node has a link for each pod.
    halves = memoryview(message)[: end & ~1].cast("H")
    last = end - header
    while offset <= last:
        number = offset >> 1
        length = halves[number]
        if length < header or length > end - offset:
            raise ValueError(length)
        found[halves[number + 1] & mask] = message[offset + header : offset + length]
        offset += (length + 3) & ~3
    return found


def next_hops(value: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Yield the interface of each next hop of RTA_MULTIPATH, and its attributes; ValueError if they are damaged."""
    offset = 0
    while len(value) - offset >= _HOP.size:
        length, _, _, index = _HOP.unpack_from(value, offset)
        if not _HOP.size <= length <= len(value) - offset:
            raise ValueError(length)
        yield index, attributes(value[: offset + length], offset + _HOP.size)
        offset += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute of a request."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _messages(link: socket.socket, request: int, body: bytes, deadline: float) -> Iterator[bytes]:
    """Yield the messages of one dump; InterruptedError at its end if something changed between two parts."""
    _wait(link, deadline)
    link.send(_HEADER.pack(_HEADER.size + len(body), request, _REQUEST | _DUMP, 1, 0) + body)
    is_interrupted = False
    while True:
        _wait(link, deadline)
        data, _, received, _ = link.recvmsg(_BUFFER_BYTES)
        if received & socket.MSG_TRUNC:
            raise ValueError(received)
        offset, end = 0, len(data)
        while offset < end:
            length, kind, state, *_ = _HEADER.unpack_from(data, offset)
            if not _HEADER.size <= length <= end - offset:
                raise ValueError(length)
            is_interrupted = is_interrupted or bool(state & _INTERRUPTED)
            # The end of a dump has the error that stopped it (netlink_dump_done in net/netlink/af_netlink.c).
            if kind == _NLMSG_ERROR or (kind == _NLMSG_DONE and length >= _HEADER.size + _ERROR.size):
                number = -_ERROR.unpack_from(data, offset + _HEADER.size)[0]
                if kind == _NLMSG_ERROR or number > 0:
                    raise OSError(number, os.strerror(number))
            if kind == _NLMSG_DONE:
                if is_interrupted:
                    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
                return
            # A request RTM_GETx is answered by RTM_NEWx, whose number is two less.
            if kind == request - 2:
                yield data[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3


def _wait(link: socket.socket, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    link.settimeout(remaining)
