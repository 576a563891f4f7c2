"""One HTTP/1.1 connection: asyncio carries the bytes, h11 knows the protocol."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import h11

from dra_agent import __version__, user_file
from dra_agent.kube_client.config import MAX_FILE_BYTES, ClientConfig, Pem
from dra_agent.kube_client.errors import UnavailableError
from dra_agent.kube_client.proxy import Proxy, Tunnel
from dra_agent.memory_file import memory_file
from dra_agent.tcp_connect import connect_to

CONNECT_TIMEOUT_S = 10.0
"""Seconds to connect, TLS included."""
_CHUNK_BYTES = 1 << 16
MAX_HEADERS_BYTES = 1 << 16
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds and counts: a vanished server is detected after 30 s, also by an idle watch."""
_UNACKNOWLEDGED_TIMEOUT_MS = 20_000
"""Milliseconds after which unacknowledged bytes end the connection."""


class ClosedError(Exception):
    """The server closed the connection before a response; the result of the request is unknown."""


class Connection:
    """A connection that carries one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, version: int) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADERS_BYTES)
        self.version = version
        """Of the credentials that it was opened with."""
        self.used = False
        """Whether it has carried a request before: the server may have closed it since."""

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the last response was read, and the connection is open."""
        states = self._http.states
        idle = states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
        # Bytes after a response would be read as the next one.
        surplus, _ = self._http.trailing_data
        return idle and not surplus and not self._reader.at_eof() and not self._writer.is_closing()

    async def request(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> tuple[int, dict[str, str]]:
        """Send a request; return the status and headers (names in lower case). The body is still to be read.

        Raises ClosedError, OSError or h11.ProtocolError.
        """
        fixed = [("Host", self._host), ("User-Agent", f"dra-agent/{__version__}"), ("Accept", "application/json")]
        if body is not None:
            fixed.append(("Content-Length", str(len(body))))
        data = self._http.send(h11.Request(method=method, target=target, headers=fixed + headers))
        if body is not None:
            data = (data or b"") + (self._http.send(h11.Data(data=body)) or b"")
        self._writer.write((data or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                names = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                return event.status_code, names
            if not isinstance(event, h11.InformationalResponse):
                raise ClosedError

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; at its end the connection is ready for another request. Raises ClosedError."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                raise ClosedError
        self.used = True
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = await self._reader.read(_CHUNK_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise ClosedError
            self._http.receive_data(data)

    def close(self) -> None:
        """Close it at once."""
        with suppress(OSError, RuntimeError):
            self._writer.transport.abort()


async def open_connection(
    server: str, context: ssl.SSLContext | None, *, server_name: str | None, version: int, proxy: Proxy | None = None
) -> Connection:
    """Connect to `server` (https://host:port), through a proxy if there is one. Raises UnavailableError."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    port = parts.port or (443 if context is not None else 80)
    where = f"API server {server}" + (f" through the proxy {proxy}" if proxy is not None else "")
    name = (server_name or host) if context is not None else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            sock = await (connect_to(host, port) if proxy is None else _open_tunnel(proxy, host, port))
            reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
    except TimeoutError as error:
        raise UnavailableError(f"no connection in {CONNECT_TIMEOUT_S:.0f} s", where=where) from error
    except ssl.SSLCertVerificationError as error:
        raise UnavailableError(
            f"its certificate is not accepted: {error.verify_message}",
            where=where,
            hint="check the clock of this host, and that the certificate authority in the credentials is the cluster's",
        ) from error
    except ssl.SSLError as error:
        raise UnavailableError(f"TLS fails: {error.reason or error}", where=where) from error
    except OSError as error:
        raise UnavailableError(f"no connection: {error.strerror or error}", where=where) from error
    set_keepalive(writer.get_extra_info("socket"))
    return Connection(reader, writer, parts.netloc, version)


async def _open_tunnel(proxy: Proxy, host: str, port: int) -> socket.socket:
    """Return a connection through the proxy, before TLS. Raises OSError."""
    loop = asyncio.get_running_loop()
    handshake = Tunnel(proxy, host, port)
    sock = await connect_to(proxy.host, proxy.port)
    try:
        await loop.sock_sendall(sock, handshake.request)
        while not handshake.receive(await loop.sock_recv(sock, _CHUNK_BYTES)):
            pass
    except BaseException:
        sock.close()
        raise
    return sock


def set_keepalive(raw: socket.socket) -> None:
    """Detect a server that has vanished."""
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_TIMEOUT_MS)


def tls_context(config: ClientConfig, certificate: Pem | None = None, key: Pem | None = None) -> ssl.SSLContext | None:
    """Make the context for new connections; none for plain http. `certificate` and `key` override those of `config`.

    Raises UnavailableError where a file is missing or no certificate: it may be about to be replaced.
    """
    if config.server.startswith("http://"):
        return None
    authority = config.authority
    try:
        if authority is None:
            context = ssl.create_default_context()
        elif authority.data is not None:
            context = ssl.create_default_context(cadata=_text(authority.data))
        else:
            with memory_file(_read(authority)) as path:
                context = ssl.create_default_context(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise UnavailableError(
            f"the certificate of the cluster's authority cannot be used: {error.strerror or error}",
            where=str(authority.path if authority is not None and authority.path is not None else config.source),
        ) from error
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = certificate or config.certificate, key or config.key
    if certificate is not None and key is not None:
        try:
            with memory_file(_read(certificate)) as certificate_path, memory_file(_read(key)) as key_path:
                context.load_cert_chain(certificate_path, key_path, password="")  # never prompt on a terminal
        except (ssl.SSLError, OSError) as error:
            raise UnavailableError(
                f"the client certificate cannot be used: {error.strerror or error}", where=config.source
            ) from error
    return context


def _text(data: bytes) -> str:
    return data.decode("ascii", errors="replace")


def _read(pem: Pem) -> bytes:
    if pem.data is not None:
        return pem.data
    assert pem.path is not None
    return user_file.read(pem.path, MAX_FILE_BYTES)
