"""Reads the metrics of the running agent, as Prometheus does."""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from pathlib import Path

from dra_agent import user_file
from dra_agent.bearer_tokens import read_tokens
from dra_agent.errors import RetryableError
from dra_agent.server_certificate import MAX_FILE_BYTES

TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20
_EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it is not listened on


def scrape(host: str, port: int, certificate: Path | None = None, tokens: Path | None = None) -> str:
    """Return the response of /metrics at an address of this machine, cut to MAX_BYTES; RetryableError without one.

    `certificate` and `tokens` are the files of the agent, so that no other authority is trusted.
    """
    where = f"{host}:{port}"
    address = _EVERY_ADDRESS.get(host, host)
    try:
        headers = {} if tokens is None else {"Authorization": f"Bearer {read_tokens(tokens)[0].decode()}"}
        connection = (
            http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
            if certificate is None
            else http.client.HTTPSConnection(address, port, timeout=TIMEOUT_S, context=_trusting(certificate))
        )
        with closing(connection):
            connection.request("GET", "/metrics", headers=headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise RetryableError(f"status {response.status}", where=where, hint="read the agent's log")
            return response.read(MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        raise RetryableError(f"no metrics: {reason}", where=where, hint="read the agent's log") from error


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Return a context that accepts this certificate only, with any names: the address is this machine's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=user_file.read(certificate, MAX_FILE_BYTES).decode("ascii", "replace"))
    return context
