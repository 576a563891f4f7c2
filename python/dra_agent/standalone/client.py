"""The command line's end of the standalone socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_agent.control_socket.client import Connection
from dra_agent.standalone.wire import LINE_LIMIT, Request

ANSWER_TIMEOUT = 60.0
"""Seconds beyond what a request itself asks the agent to wait."""


class Client:
    """A connection to the agent of this host."""

    def __init__(self, path: Path) -> None:
        """Connect; raises RetryableError, saying what to do, where no agent answers."""
        self._connection = Connection(
            path,
            nobody="no agent is running here in standalone mode",
            hint="start one with `dra-agent run --standalone`, or name its directory with --state-dir",
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def ask(self, request: Request) -> Any:
        """Send one request and give its result; raises what the agent raised."""
        timeout = ANSWER_TIMEOUT + getattr(request, "wait", 0.0)
        return self._connection.ask(request, timeout=timeout, line_limit=LINE_LIMIT)
