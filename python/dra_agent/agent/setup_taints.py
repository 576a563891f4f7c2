"""Taints of devices that could not be set up for a claim whose pod is not bound yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.liveness import MonitoredThread
from dra_agent.health.issues import SETUP_FAILED
from dra_agent.inventory.tracker import InventoryDiff
from dra_agent.publish import Publisher

RECORD_TIMEOUT_S = 60.0
PUBLISH_TIMEOUT_S = 5.0
"""Seconds for a taint to be published. Afterwards the scheduler may choose the device again."""


class SetupTaints:
    """Implements dra_agent.binding.service.DeviceTaints. Lives on the event loop."""

    def __init__(
        self,
        thread: MonitoredThread,
        device_state: DeviceState,
        driver: str,
        changed: Callable[[], None],
        *,
        publish_timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        """Issues are recorded on `thread`, the one of the hardware. `changed` is called if devices have changed."""
        self._thread = thread
        self._device_state = device_state
        self._key = f"{driver}/{SETUP_FAILED}"
        self._changed = changed
        self._publish_timeout_s = publish_timeout_s
        self._publisher: Publisher | None = None
        self._published = asyncio.Event()

    def attach(self, publisher: Publisher) -> None:
        """Wait for the writes of this publisher from now on."""
        self._publisher = publisher
        publisher.watch(self._published.set)

    async def failed(self, devices: Iterable[str], message: str) -> None:
        """Taint these devices; returns when the slices have the taints, or after a short time."""
        names = frozenset(devices)
        await self._record(lambda: self._device_state.record_failed_setup(names, message))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._publish_timeout_s):
                while self._untainted(names):
                    self._published.clear()
                    await self._published.wait()

    async def completed(self, devices: Iterable[str]) -> None:
        """End earlier failures of these devices."""
        names = frozenset(devices)
        await self._record(lambda: self._device_state.record_completed_setup(names))

    async def _record(self, record: Callable[[], InventoryDiff]) -> None:
        if await self._thread.run("recording a set-up", RECORD_TIMEOUT_S, record):
            self._changed()

    def _untainted(self, names: frozenset[str]) -> bool:
        """Return True while a published device of these lacks the taint."""
        slices = () if self._publisher is None else self._publisher.slices()
        return any(
            device["name"] in names and all(taint.get("key") != self._key for taint in device.get("taints") or ())
            for slice_ in slices
            for device in slice_["spec"].get("devices") or ()
        )
