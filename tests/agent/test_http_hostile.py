"""Clients of the metrics that open connections and let them lie: everybody else is answered all the same."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from dra_agent.metrics import http_server
from dra_agent.metrics.http_server import MAX_CONNECTIONS, MAX_REQUEST_BYTES, HttpServer
from eventually import eventually

SLOW = 20
ROUNDS = 15
PROBE_S = 5.0
"""What the chart's probes wait."""


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer(
        ("127.0.0.1", 0), render=lambda accept: (b"metrics", "text/plain"), healthy=list, ready=lambda: ["starting"]
    )
    made.start()
    yield made
    made.close()


def ask(server: HttpServer, path: str = "/healthz", at_most: float = PROBE_S) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=at_most) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class Slow:
    """Connections that send a byte now and then, and are opened again where they end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.up = threading.Barrier(SLOW + 1)
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(SLOW)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        first = True
        while not self._stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
                    if first:
                        first = False
                        self.up.wait(30)
                    while not self._stop.wait(0.2):
                        connection.sendall(b"x")
            except OSError:
                continue

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


def test_twenty_slow_connections_take_no_probe_away(server: HttpServer) -> None:
    slow = Slow(server.port)
    try:
        slow.up.wait(30)
        # What the kubelet asks for every ten seconds, much more often.
        assert [ask(server) for _ in range(ROUNDS)] == [200] * ROUNDS
        assert ask(server, "/metrics") == 200
    finally:
        slow.end()


def test_probes_have_a_listener_of_their_own(server: HttpServer) -> None:
    with_probes = HttpServer(("127.0.0.1", 0), healthy=list, ready=lambda: ["starting"])
    with_probes.start()
    try:
        assert (ask(with_probes), ask(with_probes, "/readyz"), ask(with_probes, "/metrics")) == (200, 503, 404)
        assert with_probes.port != server.port
    finally:
        with_probes.close()


def test_a_connection_has_a_deadline_however_it_spends_its_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_TIMEOUT_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:

        def ended() -> bool:
            try:
                connection.sendall(b"x")  # never silent for long
            except OSError:
                return True
            return False

        eventually(ended, "the connection was never ended")


def test_one_connection_too_many_ends_the_oldest(server: HttpServer) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(MAX_CONNECTIONS)]
    try:
        for connection in held:
            connection.sendall(b"GET ")
        assert ask(server) == 200
        assert held[0].recv(1) == b"", "ended"
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize("ending", [b"", b"\r\n"])
def test_a_request_has_a_size(server: HttpServer, ending: bytes) -> None:
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
    """A proxy in front of the metrics and the agent never disagree about where a request ends: one connection, one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(smuggled + b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
        answers = b""
        try:
            while part := connection.recv(4096):
                answers += part
        except ConnectionResetError:
            pass  # closed with the second request unread
    assert answers.count(b"HTTP/1.") == 1 and not answers.endswith(b"ok\n"), answers


@pytest.mark.parametrize("path", ["/metrics%0d%0aSet-Cookie:%20a=b", "/../metrics", "/metrics/../healthz"])
def test_no_path_brings_headers_or_another_page(server: HttpServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            answer = stream.read()
    head = answer.partition(b"\r\n\r\n")[0]
    assert b" 404 " in head.splitlines()[0] and b"Set-Cookie" not in head
