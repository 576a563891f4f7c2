"""Authentication of clients: none, or a certificate of one CA with one name."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dra_agent.printable import printable

_MAX_NAME_CHARS = 128
"""Characters of a name in a message; the authority may have signed longer ones."""


class ClientRule:
    """Checks the client of a connection at each request: a connection may outlive its certificate."""

    def __init__(self, *, required: bool, names: Sequence[str] = ()) -> None:
        """`names`: common names or DNS names, of which the certificate must have one; empty: any name."""
        self.required = required
        self._names = frozenset(names)

    def objection(self, connection: ssl.SSLObject) -> str:
        """Return why this client is refused; empty if it is accepted."""
        if not self.required:
            return ""
        certificate = connection.getpeercert()
        if not certificate:
            return "a client certificate is required and none was shown"
        if ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time():  # noqa: TID251 - certificates expire at a moment of the wall clock
            return "the client certificate has expired since it was shown"
        names = _names(certificate)
        if self._names and self._names.isdisjoint(names):
            known = printable(", ".join(names) or "no name", line=True, longest=_MAX_NAME_CHARS)
            return f"the client certificate is of {known}, which is not an allowed name"
        return ""


def reporting(refused: Callable[[str], None]) -> type[ssl.SSLObject]:
    """Return a class for a context's connections: `refused` gets the reason where a client's certificate is invalid.

    asyncio closes a connection whose handshake failed before OpenSSL's alert is sent, and logs nothing. A handshake
    that first requests more data sends the alert; the client reads it and closes, or the handshake times out.
    """

    class Reporting(ssl.SSLObject):
        _failed: ssl.SSLError | None = None

        def do_handshake(self) -> None:
            if self._failed is not None:
                raise self._failed
            try:
                super().do_handshake()
            except ssl.SSLCertVerificationError as error:
                self._failed = error
                refused(f"the client certificate is not valid: {error.verify_message}")
                raise ssl.SSLWantReadError from error

    return Reporting


def _names(certificate: Mapping[str, Any]) -> list[str]:
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return subject + [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
