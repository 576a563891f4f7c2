"""Answers the hooks of containers that start: what they ask for goes to the set-up that knows how."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dra_agent.errors import AgentError, PermanentError

if TYPE_CHECKING:
    from dra_agent.control_socket.server import Server

log = logging.getLogger(__name__)

MAX_CONCURRENCY = "limit"
"""What a hook asks for that does not say what."""
_LONGEST_LINE = 1 << 14


class _Task(msgspec.Struct, frozen=True):
    task: str = MAX_CONCURRENCY


class HookServer:
    """From `start` to `stop`. Of several agents on one node the last one that started answers, from what is on disk."""

    def __init__(self, socket: Path, tasks: Mapping[str, Callable[[bytes], bool]]) -> None:
        """`tasks`: who does what a hook can ask for, with the line that it wrote; each may take its time."""
        self._socket = socket
        self._tasks = tasks
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen; without the socket, which is told, containers that need it do not start."""
        from dra_agent.control_socket.server import Server

        server = Server(self._socket, self._answer, line_limit=_LONGEST_LINE)
        try:
            await asyncio.to_thread(self._socket.parent.mkdir, parents=True, exist_ok=True)
            await server.start()
            self._server = server
        except (AgentError, OSError) as error:
            log.error("hooks of containers cannot ask for what they need", extra={"reason": str(error)})

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop()

    async def _answer(self, line: bytes) -> bool:
        try:
            task = msgspec.json.decode(line, type=_Task).task
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise PermanentError(f"not understood: {error}", where="a hook's request") from error
        if task not in self._tasks:
            raise PermanentError(f"task {task!r} is not known to this agent", where="a hook's request")
        return await asyncio.to_thread(self._tasks[task], line)
