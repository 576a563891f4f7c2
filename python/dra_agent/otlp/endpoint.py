"""The collector's address and the resource attributes of the configuration, validated before the agent starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from dra_agent.errors import UsageError

MAX_ATTRIBUTES = 32
MAX_ATTRIBUTE_CHARS = 1024
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_HINT = 'write for example "https://collector.example:4318"'


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    is_tls: bool
    path: str
    """Without a slash at the end; the path of a signal is added."""

    @property
    def authority(self) -> str:
        """HOST:PORT, with an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Whether nothing but the collector can read what is sent: over TLS, or on this host."""
        import ipaddress

        if self.is_tls:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{self.authority}{self.path}"


def parse_endpoint(text: str, where: str = "otlp.endpoint") -> Endpoint:
    """Split an endpoint of the configuration; UsageError unless it is http(s)://HOST[:PORT][/PATH]."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise UsageError(f"{text!r} is not a URL", where=where, hint=_HINT) from None
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if usual is None or not parts.hostname or not text.isascii() or any(char.isspace() for char in text):
        raise UsageError(f"{text!r} is not http://HOST[:PORT] or https://HOST[:PORT]", where=where, hint=_HINT)
    if parts.username is not None or parts.password is not None:
        raise UsageError("it contains a user or password", where=where, hint="write credentials to otlp.headers_file")
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path) or port == 0:
        raise UsageError(f"{text!r} is not http://HOST[:PORT][/PATH]", where=where, hint=_HINT)
    path = parts.path.rstrip("/")
    if path.endswith(("/v1/metrics", "/v1/traces")):
        raise UsageError(
            f"{text!r} has the path of a signal", where=where, hint=f"leave out {path[path.rindex('/v1/') :]!r}"
        )
    return Endpoint(parts.hostname, port or usual, parts.scheme == "https", path)


def check_attributes(attributes: dict[str, str], where: str = "otlp.attributes") -> None:
    """Raise UsageError for resource attributes that a collector may reject."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise UsageError(f"it has {len(attributes)} attributes, and {MAX_ATTRIBUTES} are possible", where=where)
    for name, value in attributes.items():
        if not _KEY.fullmatch(name):
            hint = 'write a name such as "k8s.cluster.name", with letters, digits, and "._-"'
            raise UsageError(f"{name!r} is not the name of an attribute", where=where, hint=hint)
        if len(value) > MAX_ATTRIBUTE_CHARS:
            raise UsageError(f"the value of {name!r} has more than {MAX_ATTRIBUTE_CHARS} characters", where=where)
