"""The unix socket by which operators and programs of this host start, cancel and look at a reclaim."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from dra_agent.clock import STEADY
from dra_agent.control_socket.server import Server
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.signal import printable
from dra_agent.reclaim.status import status_of
from dra_agent.reclaim.wire import LINE_LIMIT, About, Cancel, Start, Status, decode_request


class ReclaimControlServer:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        path: Path,
        reclaim: ReclaimService,
        *,
        now: Callable[[], datetime] = STEADY.now,
        about: Callable[[], Any] = dict,
    ) -> None:
        """`about` describes the agent."""
        self._reclaim = reclaim
        self._now = now
        self._about = about
        self._server = Server(path, self._do, line_limit=LINE_LIMIT)

    async def start(self) -> None:
        """Listen; raises as dra_agent.control_socket's server does."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._server.stop()

    async def _do(self, line: bytes) -> Any:
        match decode_request(line):
            case Start(kind, seconds, what):
                deadline = None if seconds is None else self._now() + timedelta(seconds=seconds)
                await self._reclaim.begin(kind, deadline=deadline, what=printable(what) or "started by an operator")
            case Cancel(everything):
                await self._reclaim.cancel(everything=everything)
            case About():
                return self._about()
            case Status():
                pass
        return status_of(self._reclaim.state, self._reclaim.hearing(), self._reclaim.progress(), self._now())
