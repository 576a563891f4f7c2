"""A list and a watch of one kind: follows objects until cancelled, and reports the age of the last state.

A watch that breaks is resumed at its resource version, and listed again only if that has expired. All agents of a
cluster do this after an outage of the API server, so pauses have full jitter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import aclosing, suppress

from dra_agent.errors import AgentError, RetryableError
from dra_agent.kube_client.client import ApiClient, ObjectList, WatchCursor, WatchEvent
from dra_agent.kube_client.errors import GoneError, UnauthorizedError, UnavailableError
from dra_agent.kube_client.kinds import Kind
from dra_agent.kube_client.log_deduplicator import LogDeduplicator
from dra_agent.retry import Backoff

log = logging.getLogger(__name__)

STEADY_AFTER_S = 30.0
"""Seconds that a watch must stay open for the next failure to count as the first."""
RESUME_FOR_S = 300.0
"""How long after a break a watch is resumed. Later the server has compacted its history (etcd keeps 5 minutes)."""


class Reflector(ABC):
    """Follows the objects that field selectors choose. One task runs `run`; all methods belong on the event loop."""

    def __init__(
        self,
        api: ApiClient,
        kind: Kind,
        fields: Mapping[str, str],
        *,
        subject: str,
        backoff: Backoff | None = None,
    ) -> None:
        """`subject` names the objects in the log, as in "slices". `backoff` has the pauses after failures."""
        self._api = api
        self._kind = kind
        self._fields = fields
        self._subject = subject
        self._expedited = asyncio.Event()
        self._backoff = backoff or Backoff.for_lists()
        self._cursor: WatchCursor | None = None
        """The resource version to resume from; None if a list is needed."""
        self._listed = False
        """Whether the last watch followed a list."""
        self._opened_at: float | None = None
        self._listing = asyncio.Lock()
        self._broken_since: float | None = time.monotonic()
        self._log_dedup = LogDeduplicator()
        self.error: AgentError | None = None
        """Why it does not follow at the moment."""

    @abstractmethod
    def store_list(self, found: ObjectList) -> None:
        """Replace the state."""

    @abstractmethod
    def store_event(self, event: WatchEvent) -> None:
        """Apply a change."""

    def recovered(self) -> None:  # noqa: B027 - optional
        """Called when a watch is open again after a failure."""

    def failed(self, error: AgentError) -> None:  # noqa: B027 - optional
        """Called when a list or watch has failed; `error` is also the attribute."""

    def explain(self, error: AgentError) -> AgentError:
        """Return the error to report for one of the API server."""
        return error

    @property
    def lag_s(self) -> float:
        """Seconds without a watch; 0 while the watch is open."""
        return 0.0 if self._broken_since is None else time.monotonic() - self._broken_since

    async def run(self) -> None:
        """List and watch. A watch that breaks is resumed, or starts with a list if its resource version expired."""
        while True:
            try:
                if self._cursor is None:
                    self._cursor = WatchCursor(await self.refresh())
                    self._listed = True
                await self._watch(self._cursor)
            except AgentError as error:
                await self._pause(error)
            except Exception as caught:
                log.exception(f"{self._subject} cannot be followed because of a defect")
                await self._pause(RetryableError(f"a defect: {caught!r}"))

    async def refresh(self) -> str:
        """List once; return the version from which to watch. Called before the next write if a response was lost."""
        async with self._listing:
            found = await self._api.list(self._kind, fields=self._fields)
            for note in found.notes:
                log.warning(f"the list of {self._subject} is incomplete", extra={"reason": note})
            self.store_list(found)
        return found.resource_version

    def expedite(self) -> None:
        """End the current delay, if any: a change is urgent."""
        self._expedited.set()

    async def _watch(self, cursor: WatchCursor) -> None:
        watch = self._api.watch(self._kind, fields=self._fields, resource_version=cursor, opened=self._watch_opened)
        async with aclosing(watch):
            async for event in watch:
                self.store_event(event)

    def _watch_opened(self) -> None:
        self._opened_at = time.monotonic()
        if self._log_dedup.is_over():
            log.info(f"{self._subject} are followed again", extra={"seconds": round(self.lag_s, 1)})
        self._broken_since = None
        if self.error is not None:
            self.error = None
            self.recovered()

    async def _pause(self, error: AgentError) -> None:
        now = time.monotonic()
        opened_at, self._opened_at = self._opened_at, None
        if self._broken_since is None:
            self._broken_since = now
        if opened_at is not None and now - opened_at > STEADY_AFTER_S:
            self._backoff.reset()
        # One that was resumed after a pause, and is too old, has been spread by that pause already.
        spread = self._backoff.failures > 0 and not self._listed
        self._listed = False
        resumable = isinstance(error, UnavailableError | UnauthorizedError)
        if not resumable or now - self._broken_since > RESUME_FOR_S:
            self._cursor = None
        if isinstance(error, GoneError):
            if spread:
                return
        else:
            self._note(self.explain(error))
        await self._sleep(error)

    async def _sleep(self, error: AgentError) -> None:
        seconds = self._backoff.delay(error)
        self._expedited.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._expedited.wait()

    def _note(self, error: AgentError) -> None:
        if self._log_dedup.should_log(error):
            log.warning(f"{self._subject} cannot be followed, trying again", extra={"reason": str(error)})
        self.error = error
        self.failed(error)
