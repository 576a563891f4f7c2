"""The list and watch of the driver's slices on this node: keeps `Published` current, and says how old it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing

from dra_agent.cluster import RESOURCE_SLICES, ApiServer, Backoff, GoneError, NotFoundError
from dra_agent.errors import AgentError, PermanentError, RetryableError
from dra_agent.publish.complaint import Complaint
from dra_agent.publish.published import Published, Touched

log = logging.getLogger(__name__)

STEADY = 30.0
"""Seconds that a watch has to stand for the next failure to count as the first."""


class Following:
    """Follows until it is cancelled. One task."""

    def __init__(
        self,
        api: ApiServer,
        fields: Mapping[str, str],
        published: Published,
        *,
        disturbed: Callable[[set[Touched]], None],
        caught_up: Callable[[], None],
    ) -> None:
        """`disturbed` is called with the slices that are not as they were known.

        `caught_up` is called after the first list, and after each list that follows a failure.
        """
        self._api = api
        self._fields = fields
        self._published = published
        self._disturbed = disturbed
        self._caught_up = caught_up
        self._backoff = Backoff(first=0.5, longest=15.0)
        self._listing = asyncio.Lock()
        self._broken_since: float | None = time.monotonic()
        self._complaint = Complaint()
        self.error: AgentError | None = None
        """Why it does not follow at the moment."""

    @property
    def behind(self) -> float:
        """Seconds for which nobody has told of changes; 0 while the watch stands."""
        return 0.0 if self._broken_since is None else time.monotonic() - self._broken_since

    async def run(self) -> None:
        """List, watch, and begin again when the watch breaks."""
        while True:
            stood = time.monotonic()
            try:
                version = await self.refresh()
                if self.error is not None:
                    self.error = None
                    self._caught_up()
                if self._complaint.is_over():
                    log.info("slices are followed again", extra={"seconds": round(self.behind, 1)})
                stood = time.monotonic()
                await self._watch(version)
            except Exception as caught:
                error = caught
                if not isinstance(error, AgentError):
                    log.exception("slices cannot be followed because of a defect")
                    error = RetryableError(f"a defect: {caught!r}")
                if self._broken_since is None:
                    self._broken_since = time.monotonic()
                if time.monotonic() - stood > STEADY:
                    self._backoff.reset()
                delay = self._backoff.delay(error)
                if not isinstance(error, GoneError):
                    self._note(error)
                await asyncio.sleep(delay)

    async def refresh(self) -> str:
        """List once; give the version from which to watch. Whoever lost an answer calls this before writing again."""
        async with self._listing:
            found = await self._api.list(RESOURCE_SLICES, fields=self._fields)
            first = not self._published.complete
            touched = self._published.listed(found)
        if first:
            self._caught_up()
        elif touched:
            self._disturbed(touched)
        return found.resource_version

    async def _watch(self, version: str) -> None:
        self._broken_since = None
        watch = self._api.watch(RESOURCE_SLICES, fields=self._fields, resource_version=version)
        async with aclosing(watch):
            async for event in watch:
                if touched := self._published.changed(event):
                    self._disturbed(touched)

    def _note(self, error: AgentError) -> None:
        if isinstance(error, NotFoundError):
            error = PermanentError(
                "this API server has no ResourceSlices of resource.k8s.io/v1",
                where=error.where,
                todo="Kubernetes 1.34 or later is needed",
            )
        if self._complaint.is_news(error):
            log.warning("slices cannot be followed, trying again", extra={"reason": str(error)})
        self.error = error
