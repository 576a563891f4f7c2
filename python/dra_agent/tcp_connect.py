"""Connections to a server with several addresses: one that does not respond does not use up the time of the others.

Addresses are tried as in RFC 8305 ("Happy Eyeballs"), without its order of families: getaddrinfo(3) orders them.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from errno import EINPROGRESS
from typing import Any

from dra_agent.deadline import Deadline
from dra_agent.supervisor import supervisor

ATTEMPT_DELAY_S = 0.25
"""Seconds after which the next address is tried too (RFC 8305, section 5)."""

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""As getaddrinfo returns it."""


def connect(addresses: Sequence[Address], deadline: Deadline) -> socket.socket:
    """Return a blocking socket that is connected to the first address that accepts.

    Raises OSError: the last failure of an address, or TimeoutError at the deadline.
    """
    failure: OSError = TimeoutError("no address responds")
    untried = list(reversed(addresses))
    attempts: set[socket.socket] = set()
    with selectors.DefaultSelector() as selector:
        try:
            while untried or attempts:
                if not deadline.remaining():
                    raise TimeoutError("no address responds")
                if untried:
                    try:
                        attempt = _begin(untried.pop())
                    except OSError as error:
                        failure = error
                        continue
                    attempts.add(attempt)
                    selector.register(attempt, selectors.EVENT_WRITE, attempt)
                wait_s = deadline.remaining()
                for key, _ in selector.select(min(wait_s, ATTEMPT_DELAY_S) if untried else wait_s):
                    ended: socket.socket = key.data
                    selector.unregister(ended)
                    attempts.remove(ended)
                    code = ended.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not code:
                        ended.setblocking(True)
                        return ended
                    ended.close()
                    failure = OSError(code, os.strerror(code))
        finally:
            for attempt in attempts:
                attempt.close()
    raise failure


async def connect_to(host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that is connected to the first address of `host` that accepts.

    Raises OSError: the last failure of an address. The caller sets the timeout.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"{host} has no address")
    untried = list(reversed(addresses))
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        while untried or attempts:
            if untried:
                attempts.add(supervisor().start_task(f"connect {host}", _connected(untried.pop()), awaited=True))
            await asyncio.wait(
                attempts, timeout=ATTEMPT_DELAY_S if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in [one for one in attempts if one.done()]:
                attempts.remove(attempt)
                try:
                    return attempt.result()
                except OSError as error:
                    failure = error
    finally:
        for attempt in attempts:
            attempt.cancel()
            attempt.add_done_callback(_close)
    raise failure


async def _connected(address: Address) -> socket.socket:
    family, kind, protocol, _, place = address
    attempt = socket.socket(family, kind, protocol)
    try:
        attempt.setblocking(False)
        await asyncio.get_running_loop().sock_connect(attempt, place)
    except BaseException:
        attempt.close()
        raise
    return attempt


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that succeeded after another one."""
    with suppress(OSError, asyncio.CancelledError):
        attempt.result().close()


def _begin(address: Address) -> socket.socket:
    family, kind, protocol, _, place = address
    attempt = socket.socket(family, kind, protocol)
    try:
        attempt.setblocking(False)
        code = attempt.connect_ex(place)
        if code not in (0, EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        attempt.close()
        raise
    return attempt
