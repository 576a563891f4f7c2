"""Reads the metrics of the running agent, as Prometheus does."""

from __future__ import annotations

import http.client
from contextlib import closing

from dra_agent.errors import RetryableError

TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20
_EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it is not listened on


def scrape(host: str, port: int) -> str:
    """Return the response of /metrics at an address of this machine, cut to MAX_BYTES; RetryableError without one."""
    where = f"{host}:{port}"
    try:
        with closing(http.client.HTTPConnection(_EVERY_ADDRESS.get(host, host), port, timeout=TIMEOUT_S)) as connection:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise RetryableError(f"status {response.status}", where=where, hint="read the agent's log")
            return response.read(MAX_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
        raise RetryableError(f"no metrics: {reason}", where=where, hint="read the agent's log") from error
