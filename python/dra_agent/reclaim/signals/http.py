"""Requests to a metadata service: HTTP/1.1 on one persistent connection, with bounds for responses.

No proxy, no redirect, no TLS: a metadata service is one hop away on a link-local address, and a server that responds in
its place must not be able to make the agent wait, use much memory or connect to another host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import h11
import msgspec

from dra_agent.clock import STEADY
from dra_agent.errors import UsageError
from dra_agent.json_decode import decode_json
from dra_agent.kube_client.connection import ClosedError, Connection
from dra_agent.reclaim.signal import SourceError, ascii_line, parse_time
from dra_agent.tcp_connect import connect_to

MAX_BODY_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 30.0
"""Upper limit for Retry-After: a notice of 30 s must not be missed."""


@dataclass(frozen=True, slots=True)
class Response:
    """One complete response."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    received: datetime

    def text(self) -> str:
        """Return the body as text; SourceError if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise SourceError(f"the response is not UTF-8 (byte {error.start})") from error

    def json(self, kind: Any) -> Any:
        """Return the body as JSON of that type; SourceError if it is not such JSON."""
        try:
            return decode_json(self.text(), type=kind)
        except msgspec.DecodeError as error:
            # A body may hold more levels than the decoder can go down.
            raise SourceError(f"unexpected response of the service: {ascii_line(str(error))}") from error

    @property
    def ahead(self) -> timedelta | None:
        """How far the service's clock is ahead of the host's, from its Date header; else the wall clock's offset."""
        try:
            return parse_time(self.headers["date"]) - self.received
        except (KeyError, ValueError, OverflowError):
            return STEADY.offset

    def error(self) -> SourceError:
        """Return the error of an unexpected status."""
        values = {401: "does not accept the session token", 403: "denies access", 429: "rate-limits requests"}
        message = f"returns {self.status}" + (f": {values[self.status]}" if self.status in values else "")
        if HTTPStatus.MULTIPLE_CHOICES <= self.status < HTTPStatus.BAD_REQUEST:
            message = f"returns {self.status}, a redirect, which is not followed"
        return SourceError(message, retry_after=self._retry_after())

    def _retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return min(float(text[:9]), MAX_RETRY_AFTER_S)
        with contextlib.suppress(ValueError, OverflowError):
            return min(max(0.0, (parse_time(text) - self.received).total_seconds()), MAX_RETRY_AFTER_S)
        return None


class MetadataService:
    """One connection to one endpoint, opened when it is needed. One request at a time."""

    def __init__(self, endpoint: str) -> None:
        """UsageError where the endpoint is not `http://HOST[:PORT]`."""
        parts = urlsplit(endpoint)
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme != "http" or not parts.hostname or extra or not 0 < port < 65536 or not endpoint.isascii():
            raise UsageError(
                f"{endpoint!r} is not http://HOST[:PORT]",
                where="reclaim.endpoint",
                hint="leave it out outside of tests",
            )
        self._host, self._port, self._name = parts.hostname, port, parts.netloc
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def request(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout_s: float,
    ) -> Response:
        """Send a request and read the response within `timeout_s` seconds; raises SourceError."""
        async with self._lock:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._request(method, target, headers, body)
            except TimeoutError as error:
                self.close()
                raise SourceError(f"no response within {timeout_s:g} s", where=self._name) from error
            except (ClosedError, ConnectionError) as error:
                self.close()
                raise SourceError("no connection, or closed without a response", where=self._name) from error
            except h11.ProtocolError as error:
                self.close()
                raise SourceError(f"not HTTP: {ascii_line(str(error))}", where=self._name) from error
            except OSError as error:
                self.close()
                raise SourceError(f"no connection: {error.strerror or error}", where=self._name) from error
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        kept = self._connection
        if kept is not None and kept.reusable:
            try:
                return await self._exchange(kept, method, target, headers, body)
            except (ClosedError, ConnectionError):
                pass  # the service closed an idle connection, which is not an error
        self.close()
        reader, writer = await asyncio.open_connection(sock=await connect_to(self._host, self._port))
        self._connection = Connection(reader, writer, self._name, 0)
        return await self._exchange(self._connection, method, target, headers, body)

    async def _exchange(
        self, connection: Connection, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        status, names = await connection.request(method, target, list(headers.items()), body)
        received = bytearray()
        async for data in connection.body():
            received += data
            if len(received) > MAX_BODY_BYTES:
                raise SourceError(f"the response is longer than {MAX_BODY_BYTES} bytes", where=self._name)
        if not connection.reusable:
            self.close()
        return Response(status, names, bytes(received), STEADY.now())
