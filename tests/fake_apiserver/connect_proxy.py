"""An HTTP proxy on loopback that opens tunnels (CONNECT) and records what it is asked for."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 1 << 16
OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ConnectProxy(socketserver.ThreadingTCPServer):
    """Opens each tunnel to `target`, independent of the requested name, if its response ends with OPEN."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: tuple[str, int], response: bytes | None = OPEN) -> None:
        """Without a response, the proxy waits until the client closes the connection."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.response = response
        self.heads: list[str] = []
        """Request lines and headers."""
        self.seen = bytearray()
        """What clients sent through the tunnels."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    server: ConnectProxy

    def handle(self) -> None:
        client: socket.socket = self.request
        head = b""
        while b"\r\n\r\n" not in head:
            data = client.recv(_CHUNK_BYTES)
            if not data:
                return
            head += data
        self.server.heads.append(head.decode())
        response = self.server.response
        with suppress(OSError):
            if response is None:
                client.recv(_CHUNK_BYTES)
                return
            # In two parts, as a network may deliver it.
            client.sendall(response[:9])
            client.sendall(response[9:])
            if response.endswith(OPEN):
                with socket.create_connection(self.server.target) as upstream:
                    self._relay(client, upstream)

    def _relay(self, client: socket.socket, upstream: socket.socket) -> None:
        others = {client: upstream, upstream: client}
        while True:
            for source in select.select(list(others), [], [])[0]:
                data = source.recv(_CHUNK_BYTES)
                if not data:
                    return
                if source is client:
                    self.server.seen += data
                others[source].sendall(data)


@contextmanager
def connect_proxy(target: tuple[str, int], response: bytes | None = OPEN) -> Iterator[ConnectProxy]:
    """Run a proxy for one test."""
    proxy = ConnectProxy(target, response)
    thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
