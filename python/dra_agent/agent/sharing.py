"""Looks after what shares of GPUs need while the agent lives: daemons are watched, and hooks of containers answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dra_agent.agent.config import Config
from dra_agent.errors import AgentError
from dra_agent.setup.shares import ShareSetup

if TYPE_CHECKING:
    from dra_agent.local.server import Server

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at the daemons."""
_LONGEST_LINE = 1 << 14

Report = Callable[[dict[str, str]], Awaitable[None]]
"""Takes what does not work, by device."""


class Sharing:
    """From `start` to `stop`; does nothing on a host where nothing is or was shared."""

    def __init__(
        self, config: Config, setup: ShareSetup, report: Report, *, newest: Callable[[], bool], every: float = EVERY
    ) -> None:
        """`newest`: of several agents on one node only one looks after the daemons."""
        self._setup = setup
        self._report = report
        self._newest = newest
        self._every = every
        self._needed = bool(config.inventory.share) or any(
            (config.state_dir / name).exists() for name in ("mps", "limits")
        )
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer hooks and watch daemons; without the socket, which is told, only limits by the driver do not work."""
        if not self._needed:
            return
        from dra_agent.local.server import Server

        limiter = self._setup.limiter

        async def apply(line: bytes) -> bool:
            return await asyncio.to_thread(limiter.apply, line)

        server = Server(limiter.socket, apply, line_limit=_LONGEST_LINE)
        try:
            await asyncio.to_thread(limiter.socket.parent.mkdir, parents=True, exist_ok=True)
            await server.start()
            self._server = server
        except (AgentError, OSError) as error:
            log.error("hooks of containers cannot ask for memory limits", extra={"reason": str(error)})
        self._task = asyncio.create_task(self._watch(), name="sharing")

    async def stop(self) -> None:
        """Stop; daemons go on, for the claims that are prepared."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()

    async def _watch(self) -> None:
        while True:
            try:
                if self._newest():
                    await self._report(await asyncio.to_thread(self._setup.mps.watch))
            except Exception:  # a look that fails must not end the looking
                log.exception("sharing not looked after this time")
            await asyncio.sleep(self._every)
