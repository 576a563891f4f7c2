"""The command line's end of the trigger socket: ask once, and print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_agent.local.client import Connection
from dra_agent.reclaim.wire import SOCKET, Request

AT_MOST = 10.0
"""Seconds for an answer."""


def ask(state_dir: Path, request: Request) -> Any:
    """Ask the agent of a state directory; raises what the agent raised, RetryableError where none answers."""
    with Connection(
        state_dir / SOCKET,
        nobody="no agent is running here",
        todo="start one with `dra-agent run`, or name its directory with --state-dir",
    ) as connection:
        return connection.ask(request, timeout=AT_MOST)
