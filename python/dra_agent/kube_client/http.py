"""Requests over a few kept connections, with the credentials of the moment; every failure is one of the errors."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import h11
import msgspec

from dra_agent.json_decode import decode_json
from dra_agent.kube_client.connection import ClosedError, Connection, open_connection
from dra_agent.kube_client.credentials import Credentials
from dra_agent.kube_client.errors import (
    InvalidObjectError,
    UnavailableError,
    error_for_status,
    retry_after,
    status_details,
    status_message,
)
from dra_agent.kube_client.request_rate import RequestRate
from dra_agent.kube_client.response import decode_object
from dra_agent.kube_client.slots import MAX_REQUESTS, RequestSlots
from dra_agent.kube_client.thread_reads import ThreadReads

TIMEOUT_S = 15.0
"""Default timeout of a request in seconds, from waiting for a connection to the last byte."""
MAX_BODY_BYTES = 256 << 20
"""Maximum bytes of a response."""
_MAX_IDLE = 4
"""Connections that are kept for the next request."""
_MAX_EXCERPT_CHARS = 200
"""Characters of an unexpected response that an error shows."""


class Request(NamedTuple):
    """A request to the API server."""

    method: str
    path: str
    params: Mapping[str, str] = {}
    body: Any = None
    content_type: str = "application/json"

    @property
    def resource(self) -> str:
        """The plural in the path, such as `resourceclaims`."""
        parts = self.path.split("/")
        rest = parts[3:] if parts[1] == "api" else parts[4:]
        return rest[2] if rest[0] == "namespaces" and len(rest) > 2 else rest[0]

    @property
    def is_limited(self) -> bool:
        """Whether it counts toward the requests per second."""
        return self.method != "GET" or self.resource != "resourceclaims"


class HttpTransport:
    """Sends requests. Connections are opened when they are needed and kept for the next request.

    At most `slots.MAX_REQUESTS` requests run at once, those on other threads included; each watch, and each request for
    text, has a connection besides. `request_rate` bounds how many are sent per second, without reads of claims: the
    kubelet bounds its calls, and each call reads its claims once.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._idle: list[Connection] = []
        self._in_flight: set[Connection] = set()
        self._closed = False
        self._slots = RequestSlots()
        self._rate = RequestRate()
        self._delayed = 0
        """How many requests wait for their turn by the rate."""
        self._texts = 0
        """How many requests for text run."""
        self._thread_reads = ThreadReads(credentials, lambda: self._count("GET"))
        self._counting = threading.Lock()
        credentials.watch(self._close_outdated)
        self.requests: dict[str, int] = {}
        """How many were sent, by method; a try that is repeated counts twice."""

    @property
    def server(self) -> str:
        """The address of the API server."""
        return self._credentials.config.server

    async def json(self, request: Request, *, timeout: float | None = None) -> dict[str, Any]:
        """Send a request and return the object of the response, with the limits and errors of `body`."""
        return _object(await self.body(request, timeout=timeout), self._where(request))

    async def body(self, request: Request, *, timeout: float | None = None) -> bytes:
        """Send a request and return the JSON text of the response. Raises the errors of `kube_client.errors`.

        `timeout` bounds all of it, the wait for a free connection included.
        """
        limit = TIMEOUT_S if timeout is None else timeout
        where = self._where(request)
        resource, running, waits_for = request.resource, False, self._rate.describe
        try:
            async with asyncio.timeout(limit):
                if request.is_limited and (wait_s := self._rate.reserve()):
                    await self._delay(wait_s)
                waits_for = self._slots.describe
                await self._slots.acquire(resource)
                running = True
                async with self._response(request) as connection:
                    return await _read_body(connection, where)
        except TimeoutError as error:
            message = "" if running else f": waited for {waits_for()}"
            raise UnavailableError(f"no response within {limit:g} s{message}", where=where) from error
        finally:
            if running:
                self._slots.release(resource)

    async def _delay(self, seconds: float) -> None:
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1

    async def text(self, request: Request, *, timeout: float, max_bytes: int) -> str:
        """Send a GET and return the text of the response, which another server has written.

        It takes no slot: the caller bounds how many run at once. A 401 may be that server's, so it does not concern the
        credentials. Raises the errors of `kube_client.errors`; `timeout` bounds all of it.
        """
        where = self._where(request)
        self._texts += 1
        try:
            async with asyncio.timeout(timeout):
                _, connection, status, headers = await self._send(request, where)
                try:
                    data = await _read_body(connection, where, max_bytes)
                finally:
                    self._keep(connection)
        except TimeoutError as error:
            raise UnavailableError(f"no response within {timeout:g} s", where=where) from error
        except (ClosedError, h11.ProtocolError, OSError) as error:
            raise UnavailableError("the connection ended within a response", where=where) from error
        finally:
            self._texts -= 1
        if status >= HTTPStatus.BAD_REQUEST:
            raise _refusal(status, headers, data, where)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise UnavailableError(f"redirects to another address (HTTP {status})", where=where)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidObjectError("the response is not UTF-8", where=where) from error

    def json_on_thread(self, request: Request, *, timeout: float) -> dict[str, Any] | None:
        """Send a GET on the calling thread, and return the object; None if `json` is to send it, for any reason.

        Raises the errors of a complete response, and UnavailableError after `timeout` seconds, as `json` does.
        """
        resource = request.resource
        if self._closed or not self._slots.try_acquire(resource):
            return None
        try:
            response = self._thread_reads.get(request.path, timeout)
        except TimeoutError as error:
            raise UnavailableError(f"no response within {timeout:g} s", where=self._where(request)) from error
        finally:
            self._slots.release(resource)
        if response is None or response.status == HTTPStatus.UNAUTHORIZED:
            return None
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise _refusal(response.status, response.headers, response.body, self._where(request))
        if response.status >= HTTPStatus.MULTIPLE_CHOICES or "json" not in response.headers.get("content-type", ""):
            return None
        return _object(response.body, self._where(request))

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request with an endless response; yield its lines.

        Raises UnavailableError after `idle_timeout_s` seconds without data.
        """
        where = self._where(request)
        async with self._response(request, timeout=TIMEOUT_S) as connection:
            try:
                yield _lines(connection, where, idle_timeout_s)
            finally:
                connection.close()

    def close(self) -> None:
        """Close every connection; requests that run fail."""
        self._closed = True
        self._thread_reads.close()
        for connection in (*self._idle, *self._in_flight):
            connection.close()
        self._idle.clear()
        self._in_flight.clear()

    def _count(self, method: str) -> None:
        with self._counting:
            self.requests[method] = self.requests.get(method, 0) + 1

    def _where(self, request: Request) -> str:
        return f"API server {self.server}: {request.method} {request.path}"

    @asynccontextmanager
    async def _response(self, request: Request, timeout: float | None = None) -> AsyncIterator[Connection]:
        """A connection with the successful response to `request`; kept if the response is read completely."""
        where = self._where(request)
        try:
            async with asyncio.timeout(timeout):
                connection = await self._successful_response(request, where)
        except TimeoutError as error:
            if timeout is None:
                raise
            raise UnavailableError(f"no response within {timeout:g} s", where=where) from error
        try:
            yield connection
        except (ClosedError, h11.ProtocolError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise UnavailableError("the connection ended within a response", where=where) from error
        finally:
            self._keep(connection)

    async def _successful_response(self, request: Request, where: str) -> Connection:
        for again in (True, False):
            version, connection, status, headers = await self._send(request, where)
            try:
                if status < HTTPStatus.MULTIPLE_CHOICES:
                    if "json" not in headers.get("content-type", ""):
                        raise await _foreign(connection, status, headers, where)
                    return connection
                error = await _refused(connection, status, headers, where)
            except BaseException as problem:
                self._drop(connection)
                if isinstance(problem, (ClosedError, h11.ProtocolError, OSError)) and not isinstance(
                    problem, TimeoutError
                ):
                    raise UnavailableError("the connection ended within a response", where=where) from problem
                raise
            self._keep(connection)
            if status != HTTPStatus.UNAUTHORIZED or not again or not await self._credentials.invalidate(version):
                raise error
        raise AssertionError("unreachable")

    async def _send(self, request: Request, where: str) -> tuple[int, Connection, int, dict[str, str]]:
        body = None if request.body is None else msgspec.json.encode(request.body)
        target = urlsplit(self.server).path + request.path
        if request.params:
            target += "?" + urlencode(request.params)
        while True:
            if self._closed:
                raise UnavailableError("the agent is stopping", where=where)
            authorization, context = await self._credentials.current()
            headers = [("Authorization", authorization)] if authorization else []
            if body is not None:
                headers.append(("Content-Type", request.content_type))
            connection = await self._connection(context)
            self._in_flight.add(connection)
            self._count(request.method)
            try:
                status, answered = await connection.request(request.method, target, headers, body)
            except (ClosedError, h11.ProtocolError, OSError) as error:
                self._drop(connection)
                # The server may close a kept connection at any time. The fate of the request is unknown, so a
                # creation, which is not the same when done twice, is up to the caller.
                if connection.used and request.method != "POST" and not isinstance(error, h11.ProtocolError):
                    continue
                reason = getattr(error, "strerror", None) or str(error)
                message = "the connection ended before the response" + (f": {reason}" if reason else "")
                raise UnavailableError(message, where=where) from error
            except BaseException:
                self._drop(connection)
                raise
            return connection.version, connection, status, answered

    async def _connection(self, context: ssl.SSLContext | None) -> Connection:
        version, config = self._credentials.version, self._credentials.config
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.version == version:
                return connection
            connection.close()
        return await open_connection(
            config.server, context, server_name=config.server_name, version=version, proxy=config.proxy
        )

    def _close_outdated(self) -> None:
        """Close kept connections of earlier credentials; a request that runs keeps its connection until it ends."""
        version = self._credentials.version
        for connection in [one for one in self._idle if one.version != version]:
            self._idle.remove(connection)
            connection.close()
        self._thread_reads.close_outdated()

    def _drop(self, connection: Connection) -> None:
        self._in_flight.discard(connection)
        connection.close()

    def _keep(self, connection: Connection) -> None:
        self._in_flight.discard(connection)
        kept = MAX_REQUESTS if self._slots.waiting or self._delayed else max(_MAX_IDLE, self._texts)
        is_current = connection.version == self._credentials.version
        if is_current and connection.reusable and not self._closed and len(self._idle) < kept:
            self._idle.append(connection)
        else:
            connection.close()


async def _read_body(connection: Connection, where: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in connection.body():
        size += len(part)
        if size > max_bytes:
            raise InvalidObjectError(f"the response is larger than {max_bytes >> 20} MiB", where=where)
        parts.append(part)
    return b"".join(parts)


async def _lines(connection: Connection, where: str, idle_timeout_s: float) -> AsyncIterator[bytes]:
    body = aiter(connection.body())
    rest = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_timeout_s):
                part = await anext(body, None)
        except TimeoutError as error:
            raise UnavailableError(f"no data for {idle_timeout_s:.0f} s", where=where) from error
        if part is None:
            return
        start = len(rest)
        rest += part
        if rest.find(b"\n", start) < 0:
            if len(rest) > MAX_BODY_BYTES:
                raise UnavailableError(f"a line is larger than {MAX_BODY_BYTES >> 20} MiB", where=where)
            continue
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in lines:
            if line:
                yield line


async def _refused(connection: Connection, status: int, headers: dict[str, str], where: str) -> Exception:
    """Read a response with a status of 300 or more, and return its error."""
    if status < HTTPStatus.BAD_REQUEST:
        location = headers.get("location", "elsewhere")
        connection.close()
        return UnavailableError(
            f"redirects to {location} (HTTP {status})", where=where, hint="this address is not an API server"
        )
    return _refusal(status, headers, await _read_body(connection, where), where)


def _refusal(status: int, headers: dict[str, str], data: bytes, where: str) -> Exception:
    """Return the error of a complete response with a status of 400 or more."""
    try:
        document = decode_json(data)
    except msgspec.DecodeError:
        document = None
    message = status_message(document)
    wait = retry_after(headers.get("retry-after"))
    if message is None:
        reason = _excerpt(data)
        message = f"HTTP {status} without a reason" if not reason else f"HTTP {status}: {reason}"
    return error_for_status(status, message, where=where, retry_after=wait, details=status_details(document))


async def _foreign(connection: Connection, status: int, headers: dict[str, str], where: str) -> UnavailableError:
    """Read a successful response that is not JSON, such as the login page of a proxy."""
    message = headers.get("content-type") or "something unnamed"
    reason = _excerpt(await _read_body(connection, where))
    return UnavailableError(
        f"responds with {message} instead of JSON (HTTP {status}): {reason}",
        where=where,
        hint="not a response of the API server; check its address, and proxies in between",
        retry_after=retry_after(headers.get("retry-after")),
    )


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = decode_object(data)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"the response is not JSON: {_excerpt(data)}", where=where) from error
    if not isinstance(document, dict):
        raise UnavailableError(f"the response is not an object: {_excerpt(data)}", where=where)
    return document


def _excerpt(data: bytes) -> str:
    text = " ".join(data[: 4 * _MAX_EXCERPT_CHARS].decode(errors="replace").split())
    return text[:_MAX_EXCERPT_CHARS]
