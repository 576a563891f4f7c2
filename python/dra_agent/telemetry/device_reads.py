"""Reads by device on separate threads, for what can block its reader: a driver, a kernel file, many processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from dra_agent.daemon_threads import DaemonExecutor

_T = TypeVar("_T")


class LateReadError(Exception):
    """A read has not returned in time; the text names it."""


class DeviceReads(Generic[_T]):
    """One kind of reads; used by one thread."""

    def __init__(self, threads: DaemonExecutor, timeout_s: float, subject: str) -> None:
        """`timeout_s`: for one device. `subject`: what is read of it, for messages."""
        self._threads = threads
        self._timeout_s = timeout_s
        self._subject = subject
        self._hung: dict[str, Future[_T]] = {}
        """By device: a read that has not returned in time."""

    def run(self, device: str, read: Callable[[], _T]) -> _T:
        """Call `read` for a device, unless an earlier call for it still runs.

        Raises:
            LateReadError: It has not returned.
            CancelledError: The agent stops.
        """
        hung = self._hung.get(device)
        if hung is not None and not hung.done():
            raise LateReadError(f"an earlier read of its {self._subject} has not returned")
        self._hung.pop(device, None)
        future = self._threads.submit(read)
        try:
            return future.result(self._timeout_s)
        except TimeoutError:
            if not future.done():
                self._hung[device] = future
            raise LateReadError(f"no response about its {self._subject} within {self._timeout_s:g} s") from None
