"""The command line's end of the trigger socket: ask once, and print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_agent.control_socket.client import Connection
from dra_agent.reclaim.wire import SOCKET, Request

TIMEOUT_S = 10.0
"""Seconds for an answer."""


def send_request(state_dir: Path, request: Request) -> Any:
    """Ask the agent of a state directory; raises what the agent raised, RetryableError where none answers."""
    with Connection(
        state_dir / SOCKET,
        nobody="no agent is running here",
        hint="start one with `dra-agent run`, or name its directory with --state-dir",
    ) as connection:
        return connection.ask(request, timeout=TIMEOUT_S)
