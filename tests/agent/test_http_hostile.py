"""Clients of the metrics server that keep connections open: other clients are still served."""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any

import pytest

from dra_agent import bounded_http
from dra_agent.bounded_http import MAX_PER_ADDRESS
from dra_agent.http_connection import MAX_REQUEST_BYTES
from dra_agent.metrics.http_server import HttpServer
from eventually import DEADLINE_S, eventually

SLOW_CLIENTS = 20
HELD = 300
PROBE_TIMEOUT_S = 1.0
ROUNDS = 15


@pytest.fixture
def server() -> Iterator[HttpServer]:
    instance = HttpServer(
        ("127.0.0.1", 0), render=lambda accept: (b"metrics", "text/plain"), healthy=list, ready=lambda: ["starting"]
    )
    instance.start()
    yield instance
    instance.close()


def get_status(server: HttpServer, path: str = "/healthz", timeout_s: float = DEADLINE_S) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=timeout_s) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class SlowClients:
    """Connections that send a byte now and then, and reconnect when they end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.connected = threading.Barrier(SLOW_CLIENTS + 1)
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(SLOW_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        first = True
        while not self._stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S) as connection:
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
                    if first:
                        first = False
                        self.connected.wait(DEADLINE_S)
                    while not self._stop.wait(0.2):
                        connection.sendall(b"x")
            except OSError:
                continue

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


def test_twenty_slow_connections_do_not_delay_probes(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # A probe that waits for the end of a slow connection times out.
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)
    slow = SlowClients(server.port)
    try:
        slow.connected.wait(DEADLINE_S)
        # The request of the kubelet every 10 s, sent much more often.
        assert [get_status(server) for _ in range(ROUNDS)] == [200] * ROUNDS
        assert get_status(server, "/metrics") == 200
    finally:
        slow.end()


def seconds_of_probes(server: HttpServer) -> float:
    begin = time.monotonic()
    assert [get_status(server) for _ in range(ROUNDS)] == [200] * ROUNDS
    return time.monotonic() - begin


def connections_of(server: HttpServer, count: int, text: bytes) -> list[socket.socket]:
    """Return connections that are made all at once, have sent a text as soon as they can, and send no more."""
    found = [socket.socket() for _ in range(count)]
    for connection in found:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", server.port))
    for connection in found:
        with suppress(OSError):  # the server has not accepted it yet, or has closed it for the next ones
            connection.sendall(text)
    return found


@pytest.mark.parametrize("text", [b"", b"GET /metrics HTTP/1.1\r\nX: "])
def test_three_hundred_slow_connections_at_once_do_not_delay_probes(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)
    undisturbed_s = seconds_of_probes(server)
    connections = connections_of(server, HELD, text)
    try:
        assert seconds_of_probes(server) < 10 * undisturbed_s + PROBE_TIMEOUT_S
        assert get_status(server, "/metrics") == 200
    finally:
        for connection in connections:
            connection.close()


def test_requests_whose_responses_nobody_reads_do_not_delay_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)
    large = b"x" * (64 << 20)
    server = HttpServer(("127.0.0.1", 0), render=lambda accept: (large, "text/plain"), healthy=list, ready=list)
    server.start()
    connections = connections_of(server, HELD, b"GET /metrics HTTP/1.1\r\n\r\n")
    try:
        assert [get_status(server) for _ in range(ROUNDS)] == [200] * ROUNDS
    finally:
        for connection in connections:
            connection.close()
        server.close()


def test_an_address_with_many_connections_takes_none_of_another(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)
    other = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S, source_address=("127.0.0.2", 0))
    connections = connections_of(server, HELD, b"GET ")
    try:
        assert get_status(server) == 200
        other.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.0 200 ")
    finally:
        for connection in (other, *connections):
            connection.close()


def test_probes_can_have_their_own_listener(server: HttpServer) -> None:
    with_probes = HttpServer(("127.0.0.1", 0), healthy=list, ready=lambda: ["starting"])
    with_probes.start()
    try:
        assert (get_status(with_probes), get_status(with_probes, "/readyz"), get_status(with_probes, "/metrics")) == (
            200,
            503,
            404,
        )
        assert with_probes.port != server.port
    finally:
        with_probes.close()


def test_a_connection_has_a_total_deadline(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:

        def is_closed() -> bool:
            try:
                connection.sendall(b"x")  # keeps the connection active
            except OSError:
                return True
            return False

        eventually(is_closed, "the connection was never closed")


def test_one_connection_too_many_closes_the_oldest(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "CONNECTION_TIMEOUT_S", 10 * DEADLINE_S)  # else its deadline closes it too
    connections = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) for _ in range(MAX_PER_ADDRESS)
    ]
    try:
        for connection in connections:
            connection.sendall(b"GET ")
        assert get_status(server) == 200
        assert connections[0].recv(1) == b"", "closed"
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("ending", [b"", b"\r\n"])
def test_a_request_has_a_size_limit(server: HttpServer, ending: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        line = b"X: " + b"x" * 1000 + b"\r\n"
        with pytest.raises(OSError):
            for _ in range(100 * MAX_REQUEST_BYTES // len(line)):
                connection.sendall(line if ending else b"x" * len(line))
            while connection.recv(4096):
                pass
            raise ConnectionResetError("closed")


@pytest.mark.parametrize(
    "smuggled",
    [
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 60\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        b"GET /metrics HTTP/1.1\nHost: a\n\n",
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["both lengths", "two lengths", "pipelined", "bare line feeds", "another encoding"],
)
def test_no_request_is_smuggled_behind_another(server: HttpServer, smuggled: bytes) -> None:
    """A proxy and the metrics server agree where a request ends: one connection serves one request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(smuggled + b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
        received = b""
        try:
            while part := connection.recv(4096):
                received += part
        except ConnectionResetError:
            pass  # the server closed with the second request unread
    assert received.count(b"HTTP/1.") == 1 and not received.endswith(b"ok\n"), received


@pytest.mark.parametrize("path", ["/metrics%0d%0aSet-Cookie:%20a=b", "/../metrics", "/metrics/../healthz"])
def test_a_path_injects_neither_headers_nor_other_pages(server: HttpServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            response = stream.read()
    head = response.partition(b"\r\n\r\n")[0]
    assert b" 404 " in head.splitlines()[0] and b"Set-Cookie" not in head


def test_a_listener_that_the_kernel_refuses_once_accepts_afterwards(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_GRACE_S", 1.0)
    register, refused = selectors.DefaultSelector.register, [0]

    def refuse_once(selector: Any, end: Any, *args: Any) -> object:
        is_listener = isinstance(end, socket.socket) and end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_listener and end.getsockname()[1] == server.port and not refused[0]:
            refused[0] += 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return register(selector, end, *args)

    monkeypatch.setattr(selectors.DefaultSelector, "register", refuse_once)
    with ExitStack() as clients:  # so many that the listener pauses

        def is_refused() -> int:
            for _ in range(MAX_PER_ADDRESS + 26):
                clients.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE_S))
            return refused[0]

        eventually(is_refused)
    eventually(lambda: get_status(server) == HTTPStatus.OK)
