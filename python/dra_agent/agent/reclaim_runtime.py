"""The composition of reclaim: the sources of this host, the state that they add up to, and the operators' socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dra_agent.agent.about import describe
from dra_agent.agent.config import Config
from dra_agent.clock import STEADY
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.reclaim.control import ReclaimControlServer
from dra_agent.reclaim.service import OPERATOR, ReclaimService
from dra_agent.reclaim.signal import Signal
from dra_agent.reclaim.signals.detection import select_sources
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import StateFile
from dra_agent.reclaim.wire import SOCKET

log = logging.getLogger(__name__)

MARGIN_S = 1.0
"""Seconds before the deadline at which nothing is waited for any more."""
FOLLOW_INTERVAL_S = 0.25
"""Between two checks of whether a newer agent has saved another state: one stat(2)."""


class ReclaimRuntime:
    """From `start` to `stop`."""

    def __init__(self, config: Config, host: Host, boot: str, *, newest: Callable[[], bool]) -> None:
        """`newest`: whether this is the agent that keeps the state, of several in a rolling update.

        UsageError where a source is configured that cannot be.
        """
        self.reclaim = ReclaimService(config.state_dir, boot, select_sources(config.reclaim, host), newest=newest)
        self._trigger = ReclaimControlServer(config.state_dir / SOCKET, self.reclaim, about=lambda: describe(config))
        self._newest = newest
        self._file = StateFile(config.state_dir)
        self._following: asyncio.Task[None] | None = None

    @property
    def seconds_left(self) -> float | None:
        """See `seconds_left`."""
        return seconds_left(self.reclaim)

    async def start(self) -> None:
        """Listen to sources and operators."""
        try:
            await self._trigger.start()
        except AgentError as error:
            # Clouds are heard all the same, and claims served: that is what the agent is for.
            log.error("operators cannot reach the agent about a reclaim", extra={"reason": str(error)})
        await self.reclaim.start()
        self._following = asyncio.create_task(self._follow_newest(), name="reclaim of the newest agent")

    async def stop(self) -> None:
        """Stop listening; what is known stays on disk."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._trigger.stop()
        await self.reclaim.stop()

    async def _follow_newest(self) -> None:
        """Take over what operators ask of the newest agent, which has their socket: this one may be the leader."""
        seen = self._stamp()
        while True:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            try:
                if (stamp := self._stamp()) == seen or self._newest():
                    continue
                seen = stamp
                saved = await asyncio.to_thread(self._file.load, self.reclaim.state.boot)
                await self._take_operators_words(saved)
            except AgentError as error:
                log.warning("what operators ask of a newer agent is not known", extra={"reason": str(error)})
            except Exception:  # a defect here must not end it
                log.exception("what operators ask of a newer agent is not taken over")

    async def _take_operators_words(self, saved: ReclaimState) -> None:
        own = self.reclaim.state
        if set(saved.dismissed) - set(own.dismissed):
            await self.reclaim.cancel(everything=True)
        asked, known = _of_operator(saved), _of_operator(own)
        if asked is not None and asked != known:
            await self.reclaim.begin(asked.kind, deadline=asked.deadline, what=asked.what)
        elif asked is None and known is not None:
            await self.reclaim.cancel(everything=False)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._file.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def seconds_left(reclaim: ReclaimService) -> float | None:
    """Until shortly before the host is taken; None where nobody knows when."""
    deadline = reclaim.state.deadline
    return None if deadline is None else (deadline - STEADY.now()).total_seconds() - MARGIN_S


def _of_operator(state: ReclaimState) -> Signal | None:
    return next((held.reading for held in state.held if held.reading.source == OPERATOR), None)
