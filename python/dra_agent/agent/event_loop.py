"""The event loop of the agent, which can end while the system has no room for another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _AgentLoop(asyncio.SelectorEventLoop):
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the executor of the agent never waits, and asyncio would wait for it on a new thread."""


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the agent, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_AgentLoop) as runner:
        return runner.run(work)
