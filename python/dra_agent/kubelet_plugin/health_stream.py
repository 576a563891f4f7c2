"""The DRAResourceHealth service: reports device health to the kubelet, on a change and again before it expires.

Without a source the service is not registered: gRPC returns UNIMPLEMENTED, and the kubelet stops calling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import grpc

from dra_agent.health.published_health import DeviceHealth, DeviceHealthStore
from dra_agent.kubelet_plugin.handlers import Stream, service, stream
from dra_agent.kubelet_plugin.proto import health_v1_pb2, health_v1alpha1_pb2

log = logging.getLogger(__name__)

RESEND_AFTER_S = 10.0
"""Seconds after which all devices are sent again, changed or not."""
HEALTH_CHECK_TIMEOUT_S = 30
"""Seconds for which the kubelet considers a report valid (health_check_timeout_seconds)."""
MAX_MESSAGE_BYTES = 1024
"""Maximum bytes of a message that the kubelet accepts."""
_HEALTH = {"unknown": 0, "healthy": 1, "unhealthy": 2}
_VERSIONS: tuple[ModuleType, ...] = (health_v1_pb2, health_v1alpha1_pb2)


class HealthService:
    """Serves NodeWatchResources to any number of watchers, until it is closed; they wait for `set_source`."""

    def __init__(self, *, resend_after_s: float = RESEND_AFTER_S) -> None:
        self._resend_after_s = resend_after_s
        self._source: DeviceHealthStore | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._closing = False
        self._wake: set[asyncio.Event] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def watchers(self) -> int:
        """Number of open streams."""
        return len(self._wake)

    def set_source(self, source: DeviceHealthStore) -> None:
        """Start to report the health of this source."""
        self._source = source
        self._unsubscribe = source.subscribe(self._changed)
        self._wake_all()

    def close(self) -> None:
        """End every stream."""
        self._closing = True
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._wake_all()

    def handlers(self, pool: ThreadPoolExecutor) -> list[grpc.GenericRpcHandler]:
        """Return the handlers for a gRPC server; each watcher has a thread of `pool`."""
        return [
            service(
                messages,
                "DRAResourceHealth",
                {
                    "NodeWatchResources": stream(
                        self._watch_with(messages),
                        messages.NodeWatchResourcesRequest,
                        messages.NodeWatchResourcesResponse,
                        pool,
                    )
                },
            )
            for messages in _VERSIONS
        ]

    def _watch_with(self, messages: ModuleType) -> Stream:
        async def watch(request: Any) -> AsyncIterator[Any]:
            wake = asyncio.Event()
            self._wake.add(wake)
            log.debug("a client watches device health", extra={"watchers": self.watchers})
            try:
                while not self._closing:
                    wake.clear()
                    if self._source is not None:
                        yield _response(messages, self._source.rows())
                    try:
                        async with asyncio.timeout(self._resend_after_s):
                            await wake.wait()
                    except TimeoutError:
                        continue
            finally:
                self._wake.discard(wake)

        return watch

    def _changed(self) -> None:
        self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for event in self._wake:
            event.set()


def _response(messages: ModuleType, rows: Sequence[DeviceHealth]) -> Any:
    response = messages.NodeWatchResourcesResponse()
    for row in rows:
        entry = response.devices.add(
            health=_HEALTH[row.health],
            last_updated_time=int(row.seen),
            health_check_timeout_seconds=HEALTH_CHECK_TIMEOUT_S,
            message=_bounded(row.message),
        )
        entry.device.pool_name = row.pool
        entry.device.device_name = row.device
    return response


def _bounded(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
