"""Requests to the collector: one HTTP/1.1 connection each, with one deadline for everything from connect to response.

No proxy and no redirect. What the collector sends is bounded. A request blocks its thread.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import h11

from dra_agent import __version__, user_file
from dra_agent.clock import wall_now
from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, UsageError
from dra_agent.memory_file import memory_file
from dra_agent.name_lookup import NameLookup
from dra_agent.otlp.endpoint import Endpoint
from dra_agent.otlp.headers import read_headers
from dra_agent.otlp.settings import OtlpSettings
from dra_agent.printable import printable

METRICS_PATH, TRACES_PATH = "/v1/metrics", "/v1/traces"
MAX_RESPONSE_BYTES = 64 << 10
MAX_TLS_FILE_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10
_RETRYABLE = frozenset({429, 502, 503, 504})
"""Responses after which the same request may succeed (OTLP specification 1.9, "OTLP/HTTP Response")."""
_MEANINGS = {
    401: "it requires credentials (otlp.headers_file)",
    403: "it denies access (otlp.headers_file)",
    404: "it has no OTLP receiver at this path",
    413: "it accepts only smaller requests",
    429: "it limits the rate of requests",
}


class SendError(AgentError):
    """The collector did not accept a request."""

    def __init__(self, message: str, *, where: str, is_retryable: bool, retry_after: float | None = None) -> None:
        """`retry_after`: seconds that the collector requests."""
        super().__init__(message, where=where)
        self.is_retryable = is_retryable
        self.retry_after = retry_after


class Sender:
    """Sends requests to one endpoint. The files of the configuration are read again when they change."""

    def __init__(self, endpoint: Endpoint, settings: OtlpSettings) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._names = NameLookup()
        self._context: tuple[object, ssl.SSLContext] | None = None

    def check_files(self) -> None:
        """Raise UsageError for a file of the configuration that cannot be used now."""
        self._headers()
        if self.endpoint.is_tls:
            self._tls()

    def post(self, path: str, body: bytes, deadline: Deadline) -> bytes:
        """Send a request and return the body of the response. Raises SendError."""
        where = f"collector {self.endpoint}"
        try:
            return self._post(path, body, deadline, where)
        except SendError:
            raise
        except UsageError as error:  # a file that is being replaced
            raise SendError(f"{error}", where=where, is_retryable=True) from error
        except TimeoutError as error:
            raise SendError("no response within the timeout", where=where, is_retryable=True) from error
        except ssl.SSLCertVerificationError as error:
            message = f"its certificate is not accepted: {error.verify_message}"
            raise SendError(message, where=where, is_retryable=True) from error
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise SendError(f"no TLS connection: {printable(reason)}", where=where, is_retryable=True) from error
        except h11.ProtocolError as error:
            raise SendError(f"not HTTP: {printable(str(error))}", where=where, is_retryable=True) from error
        except OSError as error:
            raise SendError(f"no connection: {error.strerror or error}", where=where, is_retryable=True) from error

    def _post(self, path: str, body: bytes, deadline: Deadline, where: str) -> bytes:
        headers = self._headers()
        tls = self._tls() if self.endpoint.is_tls else None
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_BYTES)
        with _connect(self.endpoint, self._names, deadline, tls) as channel:
            names = [
                ("Host", self.endpoint.authority),
                ("User-Agent", f"dra-agent/{__version__}"),
                ("Content-Type", "application/x-protobuf"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
                *headers,
            ]
            target = f"{self.endpoint.path}{path}"
            sent = connection.send(h11.Request(method="POST", target=target, headers=names)) or b""
            with suppress(BrokenPipeError, ConnectionResetError):  # a response may explain why it hung up
                _send(channel, sent + body, deadline)
            connection.send(h11.Data(data=body))
            connection.send(h11.EndOfMessage())
            response, received = _receive(channel, connection, deadline, where)
        if 200 <= response.status_code < 300:
            return received
        raise _refused(response, where)

    def _headers(self) -> Sequence[tuple[str, str]]:
        return () if self._settings.headers_file is None else read_headers(self._settings.headers_file)

    def _tls(self) -> ssl.SSLContext:
        settings = self._settings
        files = [path for path in (settings.ca_file, settings.client_cert, settings.client_key) if path is not None]
        identity = [_identity(path) for path in files]
        if self._context is None or self._context[0] != identity:
            self._context = (identity, _client_context(settings.ca_file, settings.client_cert, settings.client_key))
        return self._context[1]


def _connect(endpoint: Endpoint, names: NameLookup, deadline: Deadline, tls: ssl.SSLContext | None) -> socket.socket:
    """Connect, with TLS where the endpoint has it. The timeout of a handshake is that of all of it (ssl.SSLSocket)."""
    channel = names.connect(endpoint.host, endpoint.port, deadline)
    try:
        _limit(channel, deadline)
        return channel if tls is None else tls.wrap_socket(channel, server_hostname=endpoint.host)
    except BaseException:
        channel.close()
        raise


def _send(channel: socket.socket, data: bytes, deadline: Deadline) -> None:
    left = memoryview(data)
    while left:
        _limit(channel, deadline)
        left = left[channel.send(left[:_CHUNK_BYTES]) :]


def _receive(
    channel: socket.socket, connection: h11.Connection, deadline: Deadline, where: str
) -> tuple[h11.Response, bytes]:
    response: h11.Response | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            _limit(channel, deadline)
            data = channel.recv(_CHUNK_BYTES)
            if not data and response is None:
                raise SendError("it closed the connection without a response", where=where, is_retryable=True)
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_RESPONSE_BYTES:
                message = f"its response is longer than {MAX_RESPONSE_BYTES >> 10} KiB"
                raise SendError(message, where=where, is_retryable=False)
        elif isinstance(event, h11.EndOfMessage) and response is not None:
            return response, bytes(body)


def _limit(channel: socket.socket, deadline: Deadline) -> None:
    """Limit the next operation; a timeout of 0 would make the socket non-blocking."""
    remaining_s = deadline.remaining()
    if not remaining_s:
        raise TimeoutError
    channel.settimeout(remaining_s)


def _refused(response: h11.Response, where: str) -> SendError:
    status = response.status_code
    meaning = _MEANINGS.get(status, "")
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        meaning = "a redirect, which is not followed"
    message = f"it returns {status}" + (f": {meaning}" if meaning else "")
    return SendError(
        message, where=where, is_retryable=status in _RETRYABLE, retry_after=_retry_after(dict(response.headers))
    )


def _retry_after(headers: dict[bytes, bytes]) -> float | None:
    """Return the seconds of a Retry-After header, which has seconds or a date (RFC 9110, 10.2.3)."""
    text = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - wall_now().timestamp())
    except (ValueError, OverflowError):
        return None


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(error.strerror or str(error), where=str(path)) from error
    return status.st_ino, status.st_mtime_ns, status.st_size


def _client_context(authorities: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=None if authorities is None else _pem("otlp.ca_file", authorities))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if certificate is not None and key is not None:
        shown, secret = _pem("otlp.client_cert", certificate), _pem("otlp.client_key", key)
        with memory_file(shown.encode()) as path, memory_file(secret.encode()) as key_path:
            try:
                context.load_cert_chain(path, key_path, password=_no_passphrase)
            except ssl.SSLError as error:
                reason = (error.reason or str(error)).replace("_", " ").lower()
                where = f"otlp.client_cert ({certificate})"
                raise UsageError(reason, where=where, hint="give a PEM certificate, and its key") from error
    return context


def _pem(setting: str, path: Path) -> str:
    """Return a PEM file. Raises UsageError."""
    where = f"{setting} ({path})"
    try:
        text = user_file.read(path, MAX_TLS_FILE_BYTES).decode("ascii")
        if setting == "otlp.ca_file":
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(error.strerror or "it has no PEM certificate", where=where, hint="give a PEM file") from error
    except ValueError as error:
        raise UsageError("it is not a PEM file", where=where, hint="give a PEM file") from error
    return text


def _no_passphrase() -> str:
    return ""  # instead of asking on the terminal
