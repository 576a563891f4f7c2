"""A proxy between one client and the API server that counts connections and can cut them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Self

from .api import Api


class CountingProxy:
    """Forwards bytes during the `with` block; a server that is down is down for its client, too."""

    def __init__(self, api: Api) -> None:
        self._server = (api.host, api.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._attempts: list[float] = []
        self._connections: list[tuple[socket.socket, socket.socket]] = []
        self.closed = False
        """Whether new connections are rejected."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes a thread that waits in accept, close does not.
        _shut_down(self._listening)
        self._listening.close()
        self.close()

    def kubeconfig(self, of: Path, path: Path) -> Path:
        """Write a copy of `of` whose server is this proxy."""
        content = json.loads(of.read_text())
        (cluster,) = content["clusters"]
        cluster["cluster"]["server"] = "https://{}:{}".format(*self._listening.getsockname())
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def close(self) -> None:
        """Cut every connection and reject new ones."""
        self.closed = True
        for ends in list(self._connections):
            _shut_down(*ends)

    def open(self) -> None:
        """Accept connections again."""
        self.closed = False

    def attempts_since(self, since: float) -> int:
        """Return how often the client has tried to connect since that time of time.monotonic()."""
        return sum(1 for at in list(self._attempts) if at >= since)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._attempts.append(time.monotonic())
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            if self.closed:
                return
            try:
                server = socket.create_connection(self._server, timeout=5)
            except OSError:
                return
            with server:
                server.settimeout(None)
                self._connections.append((client, server))
                back = threading.Thread(target=_forward, args=(server, client), daemon=True)
                back.start()
                _forward(client, server)
                back.join()
                self._connections.remove((client, server))


def _forward(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    _shut_down(one, other)


def _shut_down(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
