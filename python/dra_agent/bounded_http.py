"""An HTTP server for a few local clients, with limits for everything that a client chooses.

One thread accepts connections and reads requests without waiting for any client; only a complete request gets a thread.
So clients that are slow, or many, delay no other: a connection has a deadline, and one address has a share of the
connections and of the threads. Probes have a share of the threads of their own. Each connection has one request. It
needs no event loop of the agent, so it responds when that does not.
"""

from __future__ import annotations

import io
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import SHORTAGES, UsageError
from dra_agent.http_connection import HttpConnection, surplus
from dra_agent.supervisor import supervisor

CONNECTION_TIMEOUT_S = 10.0
"""Seconds from the start to the end of a connection, independent of the client."""
MAX_CONNECTIONS = 128
"""Maximum connections without a complete request; one more closes the oldest of the address that has the most."""
MAX_PER_ADDRESS = 64
"""Maximum of these connections of one address; one more closes its oldest."""
MAX_SERVED = 16
"""Maximum requests that are served at once, half of them for one address, as for connections; probes do not count."""
MAX_THREADS = 64
"""Closed connections count until their thread ends."""
PROBE_THREADS = 8
"""Threads of these for probes only."""
_POLL_INTERVAL_S = 0.25
"""Seconds between two checks of deadlines while there are connections."""
_ACCEPT_BATCH = 16
"""Connections that are accepted between two reads of those that are open: a request that has arrived is read first."""
_BACKLOG = 1024
"""Connections that the kernel keeps meanwhile."""
_GRACE_S = 0.05
"""Seconds that each connection has for its request before it is closed for a new one."""

log = logging.getLogger(__name__)


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
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port, also if 0 was configured."""
        return self._server.port

    def start(self) -> None:
        """Start to serve."""
        self._thread = supervisor().thread_loop("http", self._server.serve, self._stopping)

    def close(self) -> None:
        """Stop serving."""
        self._stopping.set()
        self._server.stop()
        if self._thread is not None:
            self._thread.join()
        self._server.close()


class BoundedHandler(BaseHTTPRequestHandler):
    """Base of handlers: they define `do_GET` and `do_HEAD`, and every other method is refused."""

    server_version = "dra-agent"
    sys_version = ""
    probes: frozenset[bytes] = frozenset()
    """Paths that are served while all other requests wait for slow clients; their responses are short."""

    def setup(self) -> None:
        """Read the request that has arrived, and nothing after it."""
        self.connection, head = self.request
        self.rfile: Any = io.BytesIO(head)
        self.wfile: Any = self.connection.makefile("wb")

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


class _Server:
    """Reads the requests of all connections on one thread, and has each served by another."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._lock = threading.Lock()
        self._waiting: dict[HttpConnection, None] = {}
        self._served: dict[HttpConnection, None] = {}
        """Both the oldest first; the lock guards the second."""
        self._threads = _Threads(MAX_THREADS - PROBE_THREADS, "http request")
        self._probe_threads = _Threads(PROBE_THREADS, "http probe")
        self._stopped = False
        self._is_short = False
        """Whether the system had no room for the last connection."""
        self._resumes_s = 0.0
        """When connections are accepted again."""
        self._listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._wakes, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._resume()
        self._selector.register(self._wakes, selectors.EVENT_READ)

    def serve(self) -> None:
        """Accept and read until `stop`."""
        self._resume()
        while not self._stopped:
            ready = [key for key, _ in self._selector.select(self._timeout_s())]
            for key in ready:
                if key.data is not None and key.data in self._waiting:
                    self._receive(key.data)
            self._end_late()
            if self._resumes_s and time.monotonic() >= self._resumes_s:
                self._resume()
            elif any(key.fileobj is self._listener for key in ready):
                self._accept()

    def stop(self) -> None:
        """Let `serve` return."""
        self._stopped = True
        with suppress(OSError):
            self._waker.send(b"x")

    def close(self) -> None:
        """Close the listener and the connections without a request."""
        for one in list(self._waiting):
            self._drop(one)
        self._threads.close()
        self._probe_threads.close()
        self._selector.close()
        for end in (self._listener, self._wakes, self._waker):
            end.close()

    def _timeout_s(self) -> float | None:
        if self._resumes_s:
            return max(0.0, self._resumes_s - time.monotonic())
        return _POLL_INTERVAL_S if self._waiting or self._served else None

    def _resume(self) -> None:
        # The kernel may refuse it for want of memory; `serve`, which is started again, then tries it again.
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._resumes_s = 0.0

    def _accept(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            oldest = surplus(self._waiting, b"", MAX_PER_ADDRESS, MAX_PER_ADDRESS)
            if oldest is not None and time.monotonic() < oldest.accepted_s + _GRACE_S:
                self._resumes_s = oldest.accepted_s + _GRACE_S
                self._selector.unregister(self._listener)
                return
            try:
                connection, client = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in SHORTAGES:
                    self._wait_for_room(error)
                return  # the client has gone
            self._is_short = False
            self._admit(connection, client)

    def _wait_for_room(self, error: OSError) -> None:
        # The connection stays in the queue, so the server would try it again at once.
        if not self._is_short:
            log.error("connections wait until the system has room for them", extra={"reason": error.strerror})
        self._is_short = True
        if self._waiting:
            self._drop(next(iter(self._waiting)))
        else:
            time.sleep(_POLL_INTERVAL_S)

    def _admit(self, connection: socket.socket, client: Any) -> None:
        try:
            connection.setblocking(False)
            if (context := self._tls()) is not None:
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            one = HttpConnection(connection, client, CONNECTION_TIMEOUT_S)
            if (closed := surplus(self._waiting, one.group, MAX_CONNECTIONS, MAX_PER_ADDRESS)) is not None:
                self._drop(closed)
            self._selector.register(connection, selectors.EVENT_READ, one)
        except (OSError, ValueError):
            connection.close()
            return
        self._waiting[one] = None

    def _receive(self, one: HttpConnection) -> None:
        try:
            is_complete = one.receive()
        except (OSError, ValueError):
            self._drop(one)
            return
        if is_complete:
            self._selector.unregister(one.connection)
            del self._waiting[one]
            self._start(one)

    def _start(self, one: HttpConnection) -> None:
        """Start the thread of a request, if there is a free one."""
        head = one.head()
        words = head.split(None, 2)
        is_probe = len(words) > 1 and words[1].partition(b"?")[0] in self._handler.probes
        threads = self._probe_threads if is_probe else self._threads
        if not is_probe:
            with self._lock:
                if (closed := surplus(self._served, one.group, MAX_SERVED, MAX_SERVED // 2)) is not None:
                    del self._served[closed]
                    closed.end()
                self._served[one] = None
        if not threads.start(self._respond, one, head):
            self._finish(one)  # requests come faster than threads end

    def _respond(self, one: HttpConnection, head: bytes) -> None:
        try:
            one.connection.settimeout(max(0.001, one.deadline_s - time.monotonic()))
            self._handler((one.connection, head), one.client, self)  # type: ignore[arg-type]
        except (OSError, ValueError):
            pass  # the client closed the connection or was too slow
        except Exception:
            log.exception("an HTTP request cannot be served because of a defect")
        finally:
            self._finish(one)

    def _finish(self, one: HttpConnection) -> None:
        with self._lock:
            self._served.pop(one, None)
        one.close()

    def _end_late(self) -> None:
        now = time.monotonic()
        for one in [one for one in self._waiting if one.deadline_s <= now]:
            self._drop(one)
        with self._lock:
            late = [one for one in self._served if one.deadline_s <= now]
            for one in late:
                del self._served[one]
        for one in late:
            one.end()

    def _drop(self, one: HttpConnection) -> None:
        del self._waiting[one]
        with suppress(KeyError, ValueError, OSError):
            self._selector.unregister(one.connection)
        one.close()


class _Threads:
    """Threads for requests; one of them exists from the start, for when the system has no room for another."""

    def __init__(self, most: int, name: str) -> None:
        self._executor = DaemonExecutor(most, name, kept=1)
        self._free = threading.BoundedSemaphore(most)

    def start(self, work: Callable[..., None], *args: object) -> bool:
        """Have the call made at once; return False if no thread is free."""
        if not self._free.acquire(blocking=False):
            return False
        try:
            self._executor.submit(work, *args).add_done_callback(lambda _: self._free.release())
        except RuntimeError:  # no thread, or after `close`
            self._free.release()
            return False
        return True

    def close(self) -> None:
        """Start no more calls."""
        self._executor.shutdown()
