"""Clients of the metrics server that keep connections open: other clients are still served."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from dra_agent import bounded_http
from dra_agent.bounded_http import MAX_CONNECTIONS, MAX_REQUEST_BYTES
from dra_agent.metrics.http_server import HttpServer
from eventually import DEADLINE_S, eventually

SLOW_CLIENTS = 20
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
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) for _ in range(MAX_CONNECTIONS)
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
