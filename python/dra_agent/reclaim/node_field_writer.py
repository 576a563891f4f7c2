"""One thing that the agent says on its Node object, written until it is there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from dra_agent.errors import AgentError
from dra_agent.kube_client.backoff import Backoff
from dra_agent.kube_client.errors import ForbiddenError

log = logging.getLogger(__name__)

_Word = TypeVar("_Word")


class NodeFieldWriter(Generic[_Word]):
    """What is wanted of the Node. From the first `want` to `stop`; never in the way of who calls it."""

    def __init__(
        self,
        apply: Callable[[_Word], Awaitable[None]],
        *,
        what: str,
        grant: str,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """`apply` writes a word and leaves what others say; it may raise the errors of dra_agent.kube_client.

        `what` names it in the log, `grant` says where its right is given. `active`: whether this is the agent that
        writes, of several in a rolling update.
        """
        self._apply = apply
        self._what = what
        self._grant = grant
        self._active = active
        self._refused = False
        self.wanted: _Word | None = None
        """The latest word; None: nothing was said yet."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set_desired(self, word: _Word) -> None:
        """Have it written; returns at once."""
        if word == self.wanted:
            return
        self.wanted = word
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"reclaim {self._what}")

    async def stop(self) -> None:
        """Write no more; the Node stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        # A request is never given up for the next one, which it could arrive after.
        backoff = Backoff(first=0.25, longest=2.0)
        while True:
            self._changed.clear()
            wait: float | None = None
            if not self._active():
                wait = 1.0
            elif self.wanted is not None:
                wait = await self._write(self.wanted, backoff)
            if wait is None:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _write(self, word: _Word, backoff: Backoff) -> float | None:
        """Write it; the seconds after which to try again, None where it is done or cannot be."""
        try:
            await self._apply(word)
        except ForbiddenError as error:
            if not self._refused:
                log.error(f"{self._what} is not written", extra={"reason": str(error), "todo": self._grant})
            self._refused = True
        except AgentError as error:
            log.warning(f"{self._what} is not written yet", extra={"reason": str(error)})
            return backoff.delay(error)
        else:
            self._refused = False
            log.info(f"{self._what} is written")
        return None
