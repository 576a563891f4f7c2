"""Closes parts that may wait for a driver or a library: on a thread, so that the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.supervisor import on_thread
from dra_agent.threads import NoThreadError

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Seconds after which a part is left behind: longer than the waits of each part for its own threads and processes."""


async def close_on_thread(name: str, close: Callable[[], object], *, limit_s: float = CLOSE_TIMEOUT_S) -> bool:
    """Call `close` and wait for it; False if it takes longer. Raises what it raises."""
    executor = DaemonExecutor(1, f"close {name}")
    try:
        closed = asyncio.get_running_loop().run_in_executor(executor, close)
    except NoThreadError:
        closed = on_thread(close)
    try:
        # The thread is not ended by a timeout, and must not touch a future that is canceled.
        async with asyncio.timeout(limit_s):
            await asyncio.shield(closed)
    except TimeoutError:
        if closed.done():
            raise  # its own error
        log.warning("%s does not end, and is left behind", name)
        return False
    finally:
        executor.shutdown()
    return True


class ClosingStack:
    """Closes the parts of an agent in reverse order, and names those that were left behind."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        """For parts that are closed on the event loop."""
        self.left_behind: list[str] = []

    def add(self, name: str, close: Callable[[], object]) -> None:
        """Close a part on a thread when the stack is unwound."""
        self.stack.push_async_callback(self._close, name, close)

    async def _close(self, name: str, close: Callable[[], object]) -> None:
        if not await close_on_thread(name, close):
            self.left_behind.append(f"closing {name}")
