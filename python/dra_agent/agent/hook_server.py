"""Serves the hooks of starting containers: each request goes to the set-up that handles it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dra_agent.device_setup.container_hook import LIMIT_TASK
from dra_agent.errors import AgentError, PermanentError
from dra_agent.json_decode import decode_json
from dra_agent.supervisor import on_thread

if TYPE_CHECKING:
    from dra_agent.control_socket.server import Server

log = logging.getLogger(__name__)

_MAX_LINE_BYTES = 1 << 14


class _Task(msgspec.Struct, frozen=True):
    task: str = LIMIT_TASK


class HookServer:
    """Calls the handler of each task that a hook of a starting container sends, from `start` to `stop`.

    With several agents on one node, the last one that started serves hooks, from the state on disk.
    """

    def __init__(self, socket: Path, tasks: Mapping[str, Callable[[bytes], bool]]) -> None:
        """`tasks`: the handler of each task, called with the hook's line on a separate thread."""
        self._socket = socket
        self._tasks = tasks
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen. If the socket cannot be created, this is logged, and containers that need it do not start."""
        from dra_agent.control_socket.server import Server

        server = Server(self._socket, self.handle, line_limit=_MAX_LINE_BYTES)
        try:
            await on_thread(lambda: self._socket.parent.mkdir(parents=True, exist_ok=True))
            await server.start()
            self._server = server
        except (AgentError, OSError) as error:
            log.error("hooks of containers cannot be served", extra={"reason": str(error)})

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop()

    async def handle(self, line: bytes) -> bool:
        """Call the handler of the task that a line names. Raises PermanentError for a line that names none."""
        try:
            task = decode_json(line, type=_Task).task
        except msgspec.DecodeError as error:
            raise PermanentError(f"not understood: {error}", where="a hook's request") from error
        if task not in self._tasks:
            raise PermanentError(f"task {task!r} is not known to this agent", where="a hook's request")
        return await on_thread(self._tasks[task], line)
