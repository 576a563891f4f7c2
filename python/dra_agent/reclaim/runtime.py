"""Reclaim as one running part: the sources of this host, the state that they add up to, and the control socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dra_agent.device_setup.notice.directory import NoticeDirectory
from dra_agent.errors import AgentError
from dra_agent.reclaim.control import SOCKET, ReclaimControlServer
from dra_agent.reclaim.notice_files import NoticeFiles, notice_of
from dra_agent.reclaim.service import ReclaimService
from dra_agent.reclaim.settings import ReclaimSettings
from dra_agent.reclaim.signal import SignalSource
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

FOLLOW_INTERVAL_S = 0.25
"""Seconds between two checks of whether another agent, which is another process, has saved a state: one stat(2)."""


class ReclaimRuntime:
    """Runs the reclaim service with its sources, notice files and control socket, from `start` to `stop`."""

    def __init__(
        self,
        settings: ReclaimSettings,
        sources: Sequence[SignalSource],
        state_dir: Path,
        boot: str,
        *,
        notice_dir: Path,
        keeps_notice: bool,
        is_newest: Callable[[], bool],
        about: Callable[[], Any],
        metrics: Callable[[], str] = str,
    ) -> None:
        """`sources` are those of `settings`.

        `notice_dir` has the notice files of claims; with `keeps_notice` they outlive the release of a claim during a
        notice. `is_newest`: whether this agent saves the state, of several in a rolling update. `about` describes the
        agent; `metrics` returns the text of /metrics.
        """
        self._settings = settings
        self.service = ReclaimService(state_dir, boot, sources, is_newest=is_newest)
        self.notices = NoticeDirectory(
            notice_dir,
            current=lambda: notice_of(self.service.state),
            may_replace=is_newest,
            keeps_notice=keeps_notice,
        )
        """The directories of notice files, with the current notice."""
        self._notice_files = NoticeFiles(self.notices)
        # Before all other listeners: a container gets the notice no later than its pod is evicted.
        self.service.attach_notice_files(self._notice_files)
        self._trigger = ReclaimControlServer(state_dir / SOCKET, self.service, about=about, metrics=metrics)
        self._following: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen to sources and operators."""
        try:
            await self._trigger.start()
        except AgentError as error:
            # Signals of clouds are still received, and claims served.
            log.error("operators cannot reach the agent about a reclaim", extra={"reason": str(error)})
        await self.service.start()
        self._notice_files.start()
        # Two tasks: a state that a disk does not read yet must not delay the files.
        self._following = [
            supervisor().loop("reclaim of other agents", partial(_repeat, follow))
            for follow in (self.service.follow_other_agents, self._resume_notice_files)
        ]

    async def configure(self, settings: ReclaimSettings, sources: Sequence[SignalSource]) -> None:
        """Listen to `sources`, which are those of `settings`, if the settings have changed."""
        if settings != self._settings:
            self._settings = settings
            await self.service.replace_sources(sources)

    async def stop(self) -> None:
        """Stop listening; the state stays on disk."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        await self._trigger.stop()
        await self.service.stop()
        await self._notice_files.stop()

    async def _resume_notice_files(self) -> None:
        self._notice_files.resume()


async def _repeat(follow: Callable[[], Awaitable[None]]) -> None:
    """Follow agents that share the state directory: the newest owns the socket, and this one may be the leader."""
    problem = ""
    while True:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        try:
            await follow()
        except AgentError as error:
            if str(error) != problem:
                log.warning("other agents of this node cannot be followed", extra={"reason": str(error)})
            problem = str(error)
        except Exception:  # a defect here must not end it
            log.exception("other agents of this node are not followed")
        else:
            problem = ""
