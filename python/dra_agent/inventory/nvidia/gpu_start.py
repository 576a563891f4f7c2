"""Starts NVML and initializes GPUs on threads, so that a scan does not wait for all of that.

The driver initializes a GPU when it is looked up first: seconds for each without persistence mode. A scan waits as long
as a start of the library could ever take before; GPUs that need longer are described by a later scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import RetryableError
from dra_agent.inventory.nvidia.nvml_client import WHOLE, NvmlClient

MAX_THREADS = 64
"""One for each GPU: a GPU that hangs delays no other. Threads without work end."""


class StartingError(RetryableError):
    """The library, or the GPU, is still being initialized."""


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    waits_until: float
    """Of the monotonic clock; scans after it do not wait."""


class GpuStart:
    """Starts of one library. Used by one thread."""

    def __init__(self, nvml: NvmlClient, wait_s: float) -> None:
        """`wait_s`: seconds after the begin of a start for which a scan waits for it."""
        self._nvml = nvml
        self._wait_s = wait_s
        self._threads = DaemonExecutor(MAX_THREADS, "NVML start")
        self._calls: dict[str, _Call] = {}
        self._reported = True
        """True if a scan has read all results."""
        self._late = False
        """True if scans no longer wait for this start."""

    def library(self) -> None:
        """Start NVML. Raises StartingError while it starts, and the errors of NvmlClient.start."""
        self._nvml.drop_failed()
        if self._nvml.is_running and WHOLE not in self._calls:
            return
        if WHOLE not in self._calls:
            self._late = False
        self._result(WHOLE, self._nvml.start)

    def begin(self, addresses: Iterable[str]) -> None:
        """Initialize GPUs at the same time, and wait for them; `handle` returns the results."""
        begun = [self._begin(address, partial(self._get_handle, address)) for address in addresses]
        if begun:
            # Together: a read of one GPU may wait for the initialization of another.
            limit = max(call.waits_until for call in begun)
            wait([call.future for call in begun], max(0.0, limit - time.monotonic()))

    def handle(self, address: str) -> Any:
        """Return the handle of a GPU. Raises StartingError while it is initialized, and NvmlError."""
        return self._result(address, partial(self._get_handle, address))

    def forget(self) -> None:
        """Drop the pending starts, because the library was restarted."""
        self._calls.clear()

    def has_unread_results(self) -> bool:
        """Return once that something has ended which an earlier scan did not wait for."""
        if self._reported or not any(call.future.done() for call in self._calls.values()):
            return False
        self._reported = True
        return True

    def wait(self) -> bool:
        """Wait for the pending starts, up to their deadlines; return True if there were any."""
        pending = [call.future for call in self._calls.values()]
        wait(pending)
        return bool(pending)

    def _begin(self, key: str, call: Callable[[], Any]) -> _Call:
        begun = self._calls.get(key)
        if begun is None:
            wait_s = 0.0 if self._late else self._wait_s
            begun = self._calls[key] = _Call(self._threads.submit(call), time.monotonic() + wait_s)
        return begun

    def _result(self, key: str, call: Callable[[], Any]) -> Any:
        begun = self._begin(key, call)
        wait([begun.future], max(0.0, begun.waits_until - time.monotonic()))
        if not begun.future.done():
            self._reported = False
            self._late = True
            raise StartingError("NVML still initializes it", where=key)
        del self._calls[key]
        return begun.future.result()

    def _get_handle(self, address: str) -> Any:
        domain, _, rest = address.partition(":")
        bus_id = f"{int(domain, 16):08X}:{rest.upper()}"
        return self._nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), about=address)
