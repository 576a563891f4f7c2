"""Saves of the reclaim state: a slow disk delays nothing else, and a failed save is repeated until it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import AgentError
from dra_agent.reclaim.state import ReclaimState
from dra_agent.reclaim.state_file import OtherState, StateChangedError, StateFile
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 30.0
"""Seconds between two attempts: each writes a few KiB."""


class StateSaver:
    """Saves of one agent. It lives on the event loop; `problem` can be read from any thread."""

    def __init__(
        self, file: StateFile, state: ReclaimState, *, is_newest: Callable[[], bool], backoff: Backoff | None = None
    ) -> None:
        """`state` is the one that `file` had.

        `is_newest`: whether this agent saves the state, if several share a directory for a while.
        """
        self._file = file
        self._state = state
        self._is_newest = is_newest
        self._backoff = backoff or Backoff(first=FIRST_RETRY_S, longest=MAX_RETRY_S)
        self._thread = DaemonExecutor(1, "reclaim", kept=1)
        self._save: asyncio.Future[None] | None = None
        """The latest; None before the first, and if another agent saves."""
        self._retry: asyncio.TimerHandle | None = None
        self._requests = 0
        """Number of requests of operators; the latest state has them all."""
        self._saved_requests = 0
        """Number of those that are on disk."""
        self._is_left = False
        """Whether the latest state was left to a newer agent, or replaced by that of one."""
        self._is_reported = False
        """Whether the log has that saves fail."""

    @property
    def problem(self) -> str:
        """Why the latest state is not on disk; "" if it is, or if another agent saves."""
        save = self._save
        if save is None:
            return ""
        if not save.done():
            return f"{self._file.path}: the disk has not written it yet"
        error = save.exception()
        if error is None:
            return ""
        return str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"

    @property
    def has_request(self) -> bool:
        """Whether the latest state has a request of an operator that is not on disk yet."""
        return self._requests > self._saved_requests

    @property
    def is_stale(self) -> bool:
        """Whether the latest save has failed because another agent saved first."""
        save = self._save
        return save is not None and save.done() and isinstance(save.exception(), StateChangedError)

    def begin(self, state: ReclaimState, *, is_request: bool = False) -> None:
        """Start to save `state`, which replaces all earlier ones.

        `is_request`: it has a request of an operator, which this agent saves also if it is not the newest. No other
        agent has it.
        """
        self._state = state
        self._requests += is_request
        self._begin()

    def resume(self) -> None:
        """Save a state that was left to a newer agent, or replaced by it, if that has ended meanwhile."""
        if self._is_left and self._saves():
            self._begin()

    @property
    def is_changed(self) -> bool:
        """Whether another agent has saved a state that is not in this one; reads the disk once."""
        return self._file.is_changed

    async def changes(self) -> OtherState | None:
        """See StateFile.changes. To be called where `is_changed`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._file.changes, self._state.boot)

    def accept(self, other: OtherState) -> bool:
        """See StateFile.accept. The state that has what follows from it is to be saved next, if it is another one."""
        is_accepted = self._file.accept(other)
        if is_accepted and not self._saves():
            self._is_left = True
        return is_accepted

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the latest save has ended; False if it has not within `timeout_s`."""
        if self._save is None:
            return True
        ended, _ = await asyncio.wait([self._save], timeout=timeout_s)
        return bool(ended)

    async def confirm(self, timeout_s: float) -> None:
        """Wait for the latest save; if it has failed, try again at once."""
        if self._save is not None and self._save.done() and self.problem:
            self._begin()
        await self.wait(timeout_s)

    async def stop(self, timeout_s: float) -> None:
        """Try for the last time to save what is not on disk."""
        await self.confirm(timeout_s)
        self._cancel_retry()
        self._save = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._cancel_retry()
        self._is_left = not self.has_request and not self._saves()
        if self._is_left:
            self._save = None
            return
        self._save = asyncio.get_running_loop().run_in_executor(
            self._thread, self._file.save, self._state, self._file.accepted
        )
        self._save.add_done_callback(partial(self._ended, self._requests))

    def _saves(self) -> bool:
        try:
            return self._is_newest()
        except AgentError as error:
            log.warning(
                "cannot determine which agent saves the reclaim state; this one saves it", extra={"reason": str(error)}
            )
            return True

    def _ended(self, requests: int, save: asyncio.Future[None]) -> None:
        if save.cancelled():
            return
        error = save.exception()
        if error is None:
            self._saved_requests = max(self._saved_requests, requests)
        if save is not self._save:
            return  # a later state is being saved, or the agent has stopped
        if error is None:
            if self._is_reported:
                log.info("the reclaim state is saved again")
            self._is_reported = False
            self._backoff.reset()
            return
        if not self._is_reported and not isinstance(error, StateChangedError):
            self._is_reported = True
            log.error(
                "cannot save the reclaim state: a restart of the agent would lose it; the reclaim continues, and the "
                "agent tries to save it again",
                extra={"reason": self.problem},
            )
        self._retry = asyncio.get_running_loop().call_later(self._backoff.delay(), self._begin)

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
