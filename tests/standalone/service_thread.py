"""The service of standalone mode in this process, for tests of clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_agent.inventory.model import Device
from dra_agent.standalone.allocator import ClusterAllocator
from dra_agent.standalone.service import StandaloneService
from eventually import DEADLINE_S


class HealthyDevices:
    """No devices to allocate; each that a claim has is healthy."""

    def slices(self) -> list[Any]:
        return []

    def lookup(self, pool: str, name: str) -> Device:
        return Device(name, "gpu", "nvidia", "0000:1b:00.0", attributes={}, health="healthy")


def _has_spec(value: dict[str, Any]) -> list[str]:
    return [] if "spec" in value else ["spec: is missing"]


class ServiceThread:
    """A service on an event loop in its own thread."""

    def __init__(
        self,
        directory: Path,
        preparer: Any,
        allocator: ClusterAllocator,
        validate: Callable[[dict[str, Any]], list[str]] = _has_spec,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start_service() -> StandaloneService:
            service = StandaloneService(
                directory,
                node="n",
                driver="d",
                devices=HealthyDevices(),
                preparer=preparer,
                allocator=allocator,
                validate=validate,
            )
            await service.start()
            return service

        self.service = asyncio.run_coroutine_threadsafe(start_service(), self._loop).result(DEADLINE_S)
        self.path = self.service.socket

    def devices_changed(self) -> None:
        self._loop.call_soon_threadsafe(self.service.devices_changed)

    @property
    def waiting_requests(self) -> int:
        return self.service.waiting_requests

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self.service.stop(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
