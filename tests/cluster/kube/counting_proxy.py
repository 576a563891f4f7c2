"""A way between one client and the API server: every connection goes through here, so that it can be counted."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Self

from .api import Api


class Way:
    """Passes bytes on for as long as the `with` block lasts; a server that is away is away for its client, too."""

    def __init__(self, api: Api) -> None:
        self._server = (api.host, api.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._tried: list[float] = []
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self.closed = False
        """Whether nobody gets through."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that waits in accept is woken by shutdown, not by close.
        _hang_up(self._listening)
        self._listening.close()
        self.close()

    def kubeconfig(self, of: Path, path: Path) -> Path:
        """Write one like `of`, which leads through here."""
        content = json.loads(of.read_text())
        (cluster,) = content["clusters"]
        cluster["cluster"]["server"] = "https://{}:{}".format(*self._listening.getsockname())
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def close(self) -> None:
        """Cut every connection, and let no new one through."""
        self.closed = True
        for ends in list(self._open):
            _hang_up(*ends)

    def open(self) -> None:
        """Let connections through again."""
        self.closed = False

    def tried(self, since: float) -> int:
        """How often the client has tried to connect since that moment of time.monotonic()."""
        return sum(1 for at in list(self._tried) if at >= since)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._tried.append(time.monotonic())
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
                self._open.append((client, server))
                back = threading.Thread(target=_pass, args=(server, client), daemon=True)
                back.start()
                _pass(client, server)
                back.join()
                self._open.remove((client, server))


def _pass(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    _hang_up(one, other)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
