"""The HTTP proxy between the agent and the API server: which one, and the tunnel through it.

The rules are those of client-go: `proxy-url` of the kubeconfig; otherwise HTTPS_PROXY, unless NO_PROXY or the loopback
address exempts the server. TLS ends at the API server, so a proxy learns its address only.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import h11

from dra_agent import __version__
from dra_agent.errors import UsageError
from dra_agent.printable import printable

_DEFAULT_PORT = 80
_MAX_RESPONSE_BYTES = 1 << 16
_HINT = "use http://HOST:PORT; without a proxy, name the API server in NO_PROXY"
_OK, _MULTIPLE_CHOICES, _AUTHENTICATION_REQUIRED = 200, 300, 407


class Proxy(NamedTuple):
    """An HTTP proxy that opens tunnels (CONNECT)."""

    host: str
    port: int
    authorization: str | None = None
    """The value of Proxy-Authorization, from user and password of the URL."""

    def __str__(self) -> str:
        """Return its address, without user and password."""
        return f"http://{_join(self.host, self.port)}"


class ProxyError(ConnectionError):
    """The proxy opens no tunnel."""


# === Which proxy ===


def proxy_of_environment(server: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names for an API server, or None. UsageError if it cannot be used."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    # As in Go, the first of both names that has a value.
    name = next((name for name in ("HTTPS_PROXY", "https_proxy") if environ.get(name)), None)
    if name is None or parts.scheme != "https" or _is_local(host):
        return None
    exceptions = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if is_exempt(host, parts.port or 443, exceptions):
        return None
    return parse_proxy(environ[name], where=name)


def parse_proxy(url: str, *, where: str) -> Proxy:
    """Read the URL of a proxy; without a scheme it is http. UsageError without the URL, which may have a password."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, _DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        raise UsageError("not the address of a proxy", where=where, hint=_HINT) from None
    if parts.scheme != "http":
        raise UsageError(f"a proxy with {printable(parts.scheme)}:// is not supported", where=where, hint=_HINT)
    if not host or port == 0:
        raise UsageError("not the address of a proxy", where=where, hint=_HINT)
    if parts.username is None:
        return Proxy(host, port)
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(host, port, "Basic " + base64.b64encode(user.encode()).decode())


def is_exempt(host: str, port: int, exceptions: str) -> bool:
    """Return whether NO_PROXY exempts a server.

    Entries are `*`, an address, a range (10.0.0.0/8), or a domain, which includes those below it; `.domain` and
    `*.domain` are only those below it. An address or a domain may have a port.
    Source: golang.org/x/net/http/httpproxy.
    """
    entries = [entry.strip().lower() for entry in exceptions.split(",")]
    return any(_matches(host.lower(), port, entry) for entry in entries if entry)


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, entry_port = _split_port(entry)
    if entry_port not in ("", str(port)) or not name:
        return False
    if address is not None:
        return address == _address(name)
    if name.startswith(("*.", ".")):
        return host.endswith(name.removeprefix("*"))
    return host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.partition(":")
    return (entry, "") if ":" in port else (name, port)  # an IPv6 address has no port without brackets


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


# === The tunnel ===


class Tunnel:
    """The request for a tunnel and its response, without I/O."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        """`host` and `port` are those of the API server. ProxyError if no request can name them."""
        self._target = _join(host, port)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_RESPONSE_BYTES)
        headers = [("Host", self._target), ("User-Agent", f"dra-agent/{__version__}")]
        if proxy.authorization is not None:
            headers.append(("Proxy-Authorization", proxy.authorization))
        try:
            request = self._http.send(h11.Request(method="CONNECT", target=self._target, headers=headers)) or b""
        except (h11.ProtocolError, ValueError) as error:
            raise ProxyError(f"no request to a proxy can name {printable(self._target)}") from error
        self.request = request + (self._http.send(h11.EndOfMessage()) or b"")
        """What is sent first."""

    def receive(self, data: bytes) -> bool:
        """Take bytes of the proxy, none if it has closed the connection; return whether the tunnel is open.

        Raises ProxyError if the proxy refuses it, or does not speak HTTP.
        """
        if not data:
            raise ProxyError("the proxy closes the connection")
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._http.next_event()
        except h11.ProtocolError as error:
            raise ProxyError(f"the proxy does not respond as HTTP: {printable(str(error))}") from error
        if not isinstance(event, h11.Response):
            return False
        status = event.status_code
        if not _OK <= status < _MULTIPLE_CHOICES:
            reason = printable(event.reason.decode("latin-1"))
            wanted = "; give user and password in its URL" if status == _AUTHENTICATION_REQUIRED else ""
            raise ProxyError(f"the proxy opens no tunnel to {self._target}: HTTP {status} {reason}{wanted}")
        if self._http.trailing_data[0]:
            # Only the client speaks first in TLS.
            raise ProxyError("the proxy sends data before the API server could")
        return True


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
