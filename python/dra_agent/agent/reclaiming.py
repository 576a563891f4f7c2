"""The composition of reclaim: the sources of this host, the state that they add up to, and the operators' socket."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from dra_agent.agent.config import Config
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.reclaim.service import Reclaim
from dra_agent.reclaim.signals.choice import choose
from dra_agent.reclaim.trigger import Trigger
from dra_agent.reclaim.wire import SOCKET

log = logging.getLogger(__name__)

MARGIN = 1.0
"""Seconds before the deadline at which nothing is waited for any more."""


class Reclaiming:
    """From `start` to `stop`."""

    def __init__(self, config: Config, host: Host, boot: str, *, newest: Callable[[], bool]) -> None:
        """`newest`: whether this is the agent that keeps the state, of several in a rolling update.

        UsageError where a source is configured that cannot be.
        """
        self.reclaim = Reclaim(config.state_dir, boot, choose(config.reclaim, host), newest=newest)
        self._trigger = Trigger(config.state_dir / SOCKET, self.reclaim)

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

    async def stop(self) -> None:
        """Stop listening; what is known stays on disk."""
        await self._trigger.stop()
        await self.reclaim.stop()


def seconds_left(reclaim: Reclaim) -> float | None:
    """Until shortly before the host is taken; None where nobody knows when."""
    deadline = reclaim.state.deadline
    return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds() - MARGIN
