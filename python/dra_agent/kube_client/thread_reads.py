"""Reads of single objects on any thread: blocking, over separate kept-alive connections, without the event loop.

A claim is read on the thread that prepares it, which saves two changes of threads and asyncio's TLS. Only the common
cases are handled: a complete response with an object or an error. For all others the caller sends the request on the
event loop, which renews credentials, repeats requests, and has the messages.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import h11

from dra_agent import __version__
from dra_agent.deadline import Deadline
from dra_agent.kube_client.connection import CONNECT_TIMEOUT_S, MAX_HEADERS_BYTES, set_keepalive
from dra_agent.kube_client.credentials import Credentials, Identity
from dra_agent.kube_client.name_lookup import NameLookup
from dra_agent.kube_client.ok_response import OkResponse, OtherFormError, Response
from dra_agent.kube_client.proxy import Tunnel

MAX_IDLE = 4
"""Connections that are kept for the next read."""
MAX_BODY_BYTES = 8 << 20
"""Maximum bytes of a response that is read here: etcd stores at most 1.5 MiB (--max-request-bytes)."""
_CHUNK_BYTES = 1 << 14
"""TLS returns at most that many at once (RFC 8446, 5.1)."""
MAX_EXCESS_S = 0.01
"""Seconds by which a wait for data may exceed the deadline: setting the timeout of a socket is a system call."""
_TARGET = re.compile(r"[\x21-\x7e]+")
_MIN_TIMEOUT_S = 0.001
"""Seconds; a socket with a timeout of 0 does not wait at all."""


class ThreadReads:
    """Sends GET requests on the threads of its callers."""

    def __init__(self, credentials: Credentials, sent: Callable[[], None]) -> None:
        """`sent` is called for each request that is sent."""
        self._credentials = credentials
        self._sent = sent
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._closed = False
        self._names = NameLookup()

    def get(self, path: str, timeout: float) -> Response | None:
        """Return the response to a GET of `path`; None if the request is to be sent on the event loop.

        Raises TimeoutError after `timeout` seconds.
        """
        deadline_s = time.monotonic() + timeout
        identity = self._credentials.ready()
        if identity is None:
            return None
        connection = None
        try:
            connection = self._take(identity) or self._connect(identity, deadline_s)
            if connection is None:
                return None
            self._sent()
            response = connection.get(path, identity.authorization, deadline_s)
        except TimeoutError:
            if time.monotonic() < deadline_s:
                return None  # connecting has a separate timeout
            raise
        except (OSError, h11.ProtocolError, ValueError):
            return None
        finally:
            if connection is not None:
                self._keep(connection)
        return response

    def close(self) -> None:
        """Close every connection; reads that run end, and no other starts."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            running = self._open.difference(idle)
        for connection in idle:
            self._drop(connection)
        for connection in running:
            connection.shut_down()

    def close_outdated(self) -> None:
        """Close the kept connections of earlier credentials; a read that runs keeps its connection until it ends."""
        with self._lock:
            outdated = [one for one in self._idle if one.version != self._credentials.version]
            self._idle = [one for one in self._idle if one not in outdated]
        for connection in outdated:
            self._drop(connection)

    def _take(self, identity: Identity) -> _Connection | None:
        while True:
            with self._lock:
                if self._closed or not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.version == identity.version and connection.is_quiet():
                return connection
            self._drop(connection)

    def _connect(self, identity: Identity, deadline_s: float) -> _Connection | None:
        connection = _Connection(identity, self._names, min(deadline_s, time.monotonic() + CONNECT_TIMEOUT_S))
        with self._lock:
            if not self._closed:
                self._open.add(connection)
                return connection
        connection.close()
        return None

    def _keep(self, connection: _Connection) -> None:
        if connection.reusable:
            with self._lock:
                is_current = connection.version == self._credentials.version
                if is_current and not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                    return
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


class _Connection:
    """A connection that carries one request after the other, each within its deadline."""

    def __init__(self, identity: Identity, names: NameLookup, deadline_s: float) -> None:
        """Connect; raises OSError, TimeoutError at the deadline, ValueError for a name that no certificate can have."""
        config = identity.config
        parts = urlsplit(config.server)
        host = parts.hostname or ""
        self._prefix = parts.path
        self.version = identity.version
        self.reusable = False
        """Whether another request may be sent: the last response was read completely."""
        self._head = _Head(parts.netloc)
        port = parts.port or (443 if identity.context else 80)
        proxy = config.proxy
        nearest = (host, port) if proxy is None else (proxy.host, proxy.port)
        sock = names.connect(*nearest, Deadline(deadline_s))
        try:
            sock.settimeout(max(_MIN_TIMEOUT_S, deadline_s - time.monotonic()))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_keepalive(sock)
            if proxy is not None:
                _open_tunnel(sock, Tunnel(proxy, host, port), deadline_s)
            if identity.context is not None:
                sock = identity.context.wrap_socket(sock, server_hostname=config.server_name or host)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._bounded_at_s = 0.0
        """When the timeout of the socket was set."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def is_quiet(self) -> bool:
        """Return whether the server has neither closed the kept connection nor sent anything without a request."""
        return not self._poll.poll(0) and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending())

    def get(self, path: str, authorization: str | None, deadline_s: float) -> Response | None:
        """Send a request and read its response; None for one that is too large.

        Raises OSError (TimeoutError at the deadline) or h11.ProtocolError.
        """
        self.reusable = False
        self._bound(deadline_s)
        request = self._head.request(self._prefix + path, authorization)
        # TLS sends all or nothing; sendall of ssl.SSLSocket makes views of the data and a loop.
        if (sent := self._socket.send(request)) < len(request):
            self._socket.sendall(request[sent:])
        expected = OkResponse(MAX_HEADERS_BYTES, MAX_BODY_BYTES)
        data: bytes | bytearray = self._receive(deadline_s)
        try:
            while (response := expected.read(data)) is None:
                if not (more := self._receive(deadline_s)):
                    raise ConnectionResetError
                data = data if isinstance(data, bytearray) else bytearray(data)
                data += more
        except OtherFormError:
            return self._read_with_h11(bytes(data), deadline_s)
        self.reusable = True
        return response

    def _read_with_h11(self, data: bytes, deadline_s: float) -> Response | None:
        """Read a response that starts with `data`."""
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADERS_BYTES)
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
        http.send(h11.EndOfMessage())
        http.receive_data(data)
        response: h11.Response | None = None
        parts: list[bytes] = []
        size = 0
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(self._receive(deadline_s))
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > MAX_BODY_BYTES:
                    return None
                parts.append(bytes(event.data))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.EndOfMessage):
                break
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError
        self.reusable = http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
        assert response is not None
        names = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        return Response(response.status_code, names, b"".join(parts))

    def _receive(self, deadline_s: float) -> bytes:
        if time.monotonic() - self._bounded_at_s > MAX_EXCESS_S:
            self._bound(deadline_s)
        return self._socket.recv(_CHUNK_BYTES)

    def _bound(self, deadline_s: float) -> None:
        self._bounded_at_s = time.monotonic()
        remaining_s = deadline_s - self._bounded_at_s
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)

    def shut_down(self) -> None:
        """End a read on another thread, which then closes the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it at once."""
        with suppress(OSError):
            self._socket.close()


class _Head:
    """The head of the requests of a connection, which differ in their path only. h11 has checked the rest."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._authorization: str | None = None
        self._fields = b""

    def request(self, target: str, authorization: str | None) -> bytes:
        """Return a GET request. Raises ValueError for an invalid path, h11.ProtocolError for an invalid header."""
        if not self._fields or authorization != self._authorization:
            headers = [("Host", self._host), ("User-Agent", f"dra-agent/{__version__}"), ("Accept", "application/json")]
            if authorization is not None:
                headers.append(("Authorization", authorization))
            http = h11.Connection(h11.CLIENT)
            head = http.send(h11.Request(method="GET", target="/", headers=headers)) or b""
            self._fields, self._authorization = head.partition(b"\r\n")[2], authorization
        if _TARGET.fullmatch(target) is None:
            raise ValueError("not a path")
        return b"GET %b HTTP/1.1\r\n%b" % (target.encode("ascii"), self._fields)


def _open_tunnel(sock: socket.socket, tunnel: Tunnel, deadline_s: float) -> None:
    """Request a tunnel from the proxy on a new connection. Raises OSError; TimeoutError at the deadline."""
    sock.sendall(tunnel.request)
    while not tunnel.receive(sock.recv(_CHUNK_BYTES)):
        sock.settimeout(max(_MIN_TIMEOUT_S, deadline_s - time.monotonic()))
    sock.settimeout(max(_MIN_TIMEOUT_S, deadline_s - time.monotonic()))
