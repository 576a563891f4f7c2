"""An HTTP server for a few local clients, with limits for everything that a client chooses.

Slow or many clients delay others only for a short time: a connection has a deadline, and the oldest one is closed if
there are too many. Each connection has one request. It needs no event loop, so it responds when one does not.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import UsageError
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

CONNECTION_TIMEOUT_S = 10.0
"""Seconds from the start to the end of a connection, independent of the client."""
MAX_CONNECTIONS = 16
"""Maximum open connections; one more closes the oldest."""
MAX_REQUEST_BYTES = 16 << 10
"""Maximum size of the request line and headers; Prometheus sends less than 1 KiB."""
MAX_THREADS = 4 * MAX_CONNECTIONS
"""Closed connections count until their thread ends."""
_KEPT_THREADS = 2
"""Those that exist from the start: /healthz responds while the system has no room for a thread."""
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_POLL_INTERVAL_S = 0.25
"""Seconds between two checks of the server for a stop: socketserver has no other way."""
_EVICTION_DELAY_S = 0.02
"""Seconds of delay after a connection was closed for a new one: each has at least MAX_CONNECTIONS times as long."""


class HttpListener:
    """Listens from `start` to `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        *,
        flag: str,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Bind the address, without serving yet. `tls` returns the context of each new connection; None: plain HTTP.

        Raises:
            UsageError: if the address cannot be bound; `flag` names the option that configures it.
        """
        try:
            self._server = _Server(address, handler, tls)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}",
                where=flag,
                hint="choose a free port on an address of this host",
            ) from error
        self._stopping = threading.Event()
        self._started = False

    @property
    def port(self) -> int:
        """The port, also if 0 was configured."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start to serve."""
        supervisor().thread_loop("http", lambda: self._server.serve_forever(_POLL_INTERVAL_S), self._stopping)
        self._started = True

    def close(self) -> None:
        """Stop serving."""
        self._stopping.set()
        if self._started:
            self._server.shutdown()
        self._server.server_close()


class BoundedHandler(BaseHTTPRequestHandler):
    """Base of handlers: they define `do_GET` and `do_HEAD`, and every other method is refused."""

    timeout = CONNECTION_TIMEOUT_S
    server_version = "dra-agent"
    sys_version = ""

    def setup(self) -> None:
        """Limit what is read of a request."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(self.timeout)
            self.request.do_handshake()
        super().setup()
        self.rfile: Any = _Bounded(self.rfile, MAX_REQUEST_BYTES)

    def respond(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send a response, without its body to HEAD."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._running = threading.BoundedSemaphore(MAX_THREADS)
        self._request_threads = DaemonExecutor(MAX_THREADS, "http request", kept=_KEPT_THREADS)
        self._is_short = False
        """Whether the system had no room for the last connection."""
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """Connections and their deadlines, the oldest first."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # The base class resolves the host's name, which may take long and is not needed.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        try:
            connection, address = super().get_request()
        except OSError as error:
            if error.errno in _SHORTAGES:
                # The connection stays in the queue, so the server would try it again at once.
                if not self._is_short:
                    log.error("connections wait until the system has room for them", extra={"reason": error.strerror})
                self._is_short = True
                time.sleep(_POLL_INTERVAL_S)
            raise
        self._is_short = False
        if (context := self._tls()) is None:
            return connection, address
        # The handshake waits for the client, so the thread of the connection does it.
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open), None) if len(self._open) >= MAX_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = time.monotonic() + CONNECTION_TIMEOUT_S
        if oldest is not None:
            _end(oldest)
            # A client that reconnects at once must not evict one that waits for a response.
            time.sleep(_EVICTION_DELAY_S)
        if not self._running.acquire(blocking=False):
            self._discard(request)
            self.shutdown_request(request)  # connections come faster than threads end
            return
        self._request_threads.submit(self.process_request_thread, request, client_address)

    def server_close(self) -> None:
        super().server_close()
        self._request_threads.shutdown()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._running.release()

    def shutdown_request(self, request: Any) -> None:
        self._discard(request)
        if isinstance(request, ssl.SSLSocket):
            # close_notify: the response is complete. That of the client is not waited for.
            with suppress(OSError, ValueError):
                request.settimeout(0)
                request.unwrap()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections past their deadline; called four times a second."""
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, deadline in self._open.items() if deadline <= now]
            for connection in late:
                del self._open[connection]
        for connection in late:
            _end(connection)

    def _discard(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a client that closed the connection or was too slow."""


def _end(connection: socket.socket) -> None:
    """Shut the connection down, so that the thread that reads or writes it closes it."""
    with suppress(OSError):
        # That of an SSLSocket removes its TLS, so that its thread would continue without.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Bounded:
    """A stream that ends after a number of bytes."""

    def __init__(self, stream: Any, remaining: int) -> None:
        self._stream = stream
        self._remaining = remaining

    def readline(self, size: int = -1) -> bytes:
        """Read a line, or the remaining bytes."""
        line: bytes = self._stream.readline(self._remaining if size < 0 else min(size, self._remaining))
        self._remaining -= len(line)
        return line

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
