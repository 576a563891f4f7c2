"""A server with several addresses, of which some refuse or do not respond."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from dra_agent.deadline import Deadline
from dra_agent.tcp_connect import Address, connect, connect_to
from eventually import DEADLINE_S
from silent_address import address_of, resolve, silent_address

Connect = Callable[[Sequence[Address], float], socket.socket]


@pytest.fixture
def silent() -> Iterator[Address]:
    with silent_address() as address:
        yield address


@pytest.fixture
def refusing() -> Iterator[Address]:
    # Bound and not listening: nobody else gets the port.
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield address_of(sock.getsockname())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture(params=["thread", "event loop"])
def connect_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Both forms: one for threads, with a deadline, and one for the event loop."""

    def on_thread(addresses: Sequence[Address], timeout_s: float) -> socket.socket:
        return connect(addresses, Deadline.of(timeout_s))

    def on_loop(addresses: Sequence[Address], timeout_s: float) -> socket.socket:
        resolve(monkeypatch, "server.example", addresses)

        async def run() -> socket.socket:
            async with asyncio.timeout(timeout_s):
                return await connect_to("server.example", 443)

        return asyncio.run(run())

    return on_thread if request.param == "thread" else on_loop


def test_an_address_that_does_not_respond_does_not_delay_the_next_one(
    connect_by: Connect, silent: Address, refusing: Address, listener: socket.socket
) -> None:
    """The kernel would give up on it after two minutes, which is longer than the deadline."""
    good = address_of(listener.getsockname())
    for addresses in ((silent, good), (silent, silent, refusing, good), (refusing, good), (good, silent)):
        with connect_by(addresses, DEADLINE_S) as sock:
            assert sock.getpeername() == good[4]
            sock.setblocking(True)
            sock.sendall(b"x")


def test_refused_addresses_are_an_error_at_once(connect_by: Connect, refusing: Address) -> None:
    with pytest.raises(OSError) as caught:
        connect_by((refusing, refusing), DEADLINE_S)
    assert caught.value.errno == errno.ECONNREFUSED


def test_silent_addresses_are_a_timeout(connect_by: Connect, silent: Address, refusing: Address) -> None:
    with pytest.raises(TimeoutError):
        connect_by((silent, refusing, silent), 0.05)


def test_a_family_that_the_kernel_does_not_have_is_skipped(connect_by: Connect, listener: socket.socket) -> None:
    unknown = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_UDP, "", ("127.0.0.1", 1))
    good = address_of(listener.getsockname())
    connect_by((unknown, good), DEADLINE_S).close()
    with pytest.raises(OSError) as caught:
        connect_by((unknown,), DEADLINE_S)
    assert caught.value.errno == errno.EPROTONOSUPPORT


def test_no_address_is_an_error(connect_by: Connect) -> None:
    with pytest.raises(OSError, match="no address"):
        connect_by((), DEADLINE_S)


def test_after_the_deadline_nothing_is_connected(listener: socket.socket) -> None:
    with pytest.raises(TimeoutError):
        connect((address_of(listener.getsockname()),), Deadline.of(0.0))
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
