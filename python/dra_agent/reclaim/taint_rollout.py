"""Rollout of the reclaim taint: publishes the devices of the node, and watches until each of them has the taint."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from datetime import datetime

from dra_agent.clock import STEADY
from dra_agent.publish import Publisher
from dra_agent.reclaim.announcements import has_taint, taint_of
from dra_agent.reclaim.state import ReclaimState

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Seconds after which a slice without the taint is published again, less a jitter of up to half of it. The publisher
itself waits up to a minute after repeated failures."""
WARN_AFTER_S = 5.0
"""Seconds after which devices without the taint are logged as an error."""


class TaintRollout:
    """The taint of one notice at a time. Lives on the event loop."""

    def __init__(self, publisher: Publisher, driver: str, *, now: Callable[[], datetime] = STEADY.now) -> None:
        """`publisher` publishes the devices with the taint of the current state."""
        self._publisher = publisher
        self._driver = driver
        self._now = now
        self._changed = asyncio.Event()
        publisher.watch(self._changed.set)
        self._complete = asyncio.Event()
        self.completed_at: datetime | None = None
        """When every device was tainted, perhaps in an earlier run of the agent."""
        self.seconds: float | None = None
        """From the notice until every device was tainted; None while that is not known."""
        self.untaintable_unpublished = False
        """Whether devices that cannot be tainted are not published any more, so that no claim can get them."""

    def publish(self) -> None:
        """Publish the devices with the taint of the current state."""
        self._publisher.devices_changed()

    def differs(self, before: ReclaimState, after: ReclaimState) -> bool:
        """Return whether the two states have different taints."""
        return taint_of(before, self._driver) != taint_of(after, self._driver)

    def reset(self, completed_at: datetime | None = None) -> None:
        """Prepare for a notice; `completed_at` is the time that an earlier run of the agent saved."""
        self.completed_at = completed_at
        self.seconds, self.untaintable_unpublished = None, False
        self._complete.clear()

    @property
    def complete(self) -> bool:
        """Whether every device is tainted."""
        return self._complete.is_set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until every device is tainted, for at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._complete.wait()

    async def run(self, state: ReclaimState) -> None:
        """Return once every device has the taint of this notice."""
        assert state.noticed is not None
        taint = taint_of(state, self._driver)
        time = asyncio.get_running_loop().time
        start, warned = time(), False
        retry_at = start + _jittered(RETRY_AFTER_S)
        while True:
            self._changed.clear()
            devices = [device for one in self._publisher.slices() for device in one["spec"].get("devices") or ()]
            published = {device["name"] for device in devices}
            tainted = {device["name"] for device in devices if has_taint(device, taint, self._driver)}
            # A device that is no longer published evicts no pod.
            untainted = (self._publisher.device_names() | published) - tainted
            elapsed = time() - start
            if not untainted:
                # After a restart they are tainted already; the time is in the progress file.
                self.completed_at = self.completed_at or self._now()
                self.seconds = max(0.0, (self.completed_at - state.noticed).total_seconds())
                self._complete.set()
                log.info("every device is tainted", extra={"devices": len(tainted), "seconds": round(elapsed, 3)})
                return
            pending = bool(published - tainted)
            if pending and time() >= retry_at:
                retry_at = time() + _jittered(RETRY_AFTER_S)
                self._publisher.devices_changed()
            # If the feature gate is off, the publisher withdraws devices that it cannot taint: they get no new claims.
            late = elapsed >= WARN_AFTER_S
            self.untaintable_unpublished = late and not pending
            if late and not warned:
                warned = True
                log.error("devices are not tainted: their pods are not evicted", extra={"devices": len(untainted)})
            timers = ([] if warned else [start + WARN_AFTER_S]) + ([retry_at] if pending else [])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(timers, default=None)):
                    await self._changed.wait()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
