"""/metrics, /healthz and /readyz, on threads of their own, so that they answer when the event loop does not.

It knows no metric and no check: it is given both.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dra_agent.errors import UsageError

Render = Callable[[str], tuple[bytes, str]]
Check = Callable[[], list[str]]
"""What is wrong; nothing if all is well."""

_SLOWEST = 5.0
_MOST = 16


class HttpServer:
    """Listens from `start` to `close`."""

    def __init__(self, address: tuple[str, int], *, render: Render, healthy: Check, ready: Check) -> None:
        """Listen, but answer nobody yet. UsageError where the address cannot be had."""
        try:
            self._server = _Server(address, _handler(render, healthy, ready))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}",
                where="--metrics-address",
                todo="choose a free port on an address of this host",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port; of use where 0 was asked for."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._slots = threading.BoundedSemaphore(_MOST)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # The base class asks the resolver for the host's name, which may take long and is of no use here.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)  # somebody opens connections faster than they are answered
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a client that hung up or was too slow."""


def _handler(render: Render, healthy: Check, ready: Check) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST
        server_version = "dra-agent"
        sys_version = ""

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    body, kind = render(self.headers.get("Accept", ""))
                    self._answer(200, body, kind)
                case "/healthz":
                    self._check(healthy())
                case "/readyz":
                    self._check(ready())
                case _:
                    self._answer(404, b"there are /metrics, /healthz and /readyz\n")

        do_HEAD = do_GET  # noqa: N815  (the base class finds methods by the verb)

        def _check(self, ills: list[str]) -> None:
            text = "ok\n" if not ills else "".join(f"{ill}\n" for ill in ills)
            self._answer(503 if ills else 200, text.encode())

        def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a scrape is no event."""

    return Handler
