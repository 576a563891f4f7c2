"""A proxy between one client and the API server that can refuse writes, as an overloaded server or its gateway does."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

WRITES = ("POST", "PUT", "PATCH", "DELETE")
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}


class RefusingProxy:
    """Forwards requests during the `with` block; each response ends its connection."""

    def __init__(self, server: tuple[str, int], authority: Path, certificate: tuple[Path, Path]) -> None:
        """`certificate` and its key are for 127.0.0.1; `authority` signed those of both ends."""
        self.refused_path = ""
        """A part of the path of writes that are refused; empty: none."""
        self.refused = 0
        """How many writes were refused."""
        self.retry_after_s = 0
        trusted = ssl.create_default_context(cafile=str(authority))
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(*certificate)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                self.close_connection = True
                if self.command in WRITES and proxy.refused_path and proxy.refused_path in self.path:
                    proxy.refused += 1
                    self.send_response(HTTPStatus.SERVICE_UNAVAILABLE)
                    self.send_header("Retry-After", str(proxy.retry_after_s))
                    self.send_header("Content-Length", "0")
                    self.send_header("Connection", "close")
                    self.end_headers()
                    return
                connection = http.client.HTTPSConnection(*server, context=trusted)
                with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                    connection.request(self.command, self.path, body or None, dict(self.headers))
                    response = connection.getresponse()
                    self.send_response(response.status)
                    for name, value in response.getheaders():
                        if name.lower() not in HOP_BY_HOP:
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    while data := response.read1(65536):
                        self.wfile.write(data)
                        self.wfile.flush()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815 - names of http.server

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: Any, address: Any) -> None:
                with contextlib.suppress(OSError), served.wrap_socket(request, server_side=True) as encrypted:
                    super().finish_request(encrypted, address)

        self._server = Server(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def refuse(self, path: str, retry_after_s: int) -> None:
        """Answer writes whose path contains `path` with 503 and Retry-After from now on."""
        self.refused, self.retry_after_s, self.refused_path = 0, retry_after_s, path

    def accept(self) -> None:
        """Forward every write again."""
        self.refused_path = ""

    def kubeconfig(self, of: Path, path: Path) -> Path:
        """Write a copy of `of` whose server is this proxy."""
        content = json.loads(of.read_text())
        (cluster,) = content["clusters"]
        cluster["cluster"]["server"] = f"https://127.0.0.1:{self._server.server_address[1]}"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path
