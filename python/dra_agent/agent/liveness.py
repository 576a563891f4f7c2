"""Liveness of the agent: the event loop runs, its loops do not fail again and again, and no work exceeds its limit.

`Notifier` (the watchdog of systemd) and `metrics/http_server.py` (/healthz) report the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.supervisor import supervisor

_T = TypeVar("_T")

BEAT_INTERVAL_S = 1.0
"""Seconds between two beats of the loop."""
STALL_TIMEOUT_S = 15.0
"""Seconds without a heartbeat after which the loop is stuck."""


class LivenessMonitor:
    """Signs of life from the event loop and from worker threads; safe to use from any of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._beat = clock()
        self._work: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._checks: list[_Check] = []

    def heartbeat(self) -> None:
        """Record that the event loop runs."""
        self._beat = self._clock()

    def watch(self, check: Callable[[], str | None], grace_s: float) -> None:
        """Report the reason that `check` returns as a failure once it has lasted for `grace_s` seconds.

        For conditions that only a new process (or pod) repairs. Every `failures` calls `check`, which must not wait.
        """
        self._checks.append(_Check(check, grace_s))

    @contextmanager
    def working(self, operation: str, limit_s: float) -> Iterator[None]:
        """Do work that takes less than `limit_s` seconds even when libraries hang and disks are slow."""
        with self._lock:
            number = self._next
            self._next += 1
            self._work[number] = (operation, self._clock() + limit_s)
        try:
            yield
        finally:
            with self._lock:
                del self._work[number]

    def busy(self) -> list[str]:
        """Return the work in progress."""
        with self._lock:
            return [operation for operation, _ in self._work.values()]

    def failures(self) -> list[str]:
        """Return the components that hang; empty if the agent is live."""
        now = self._clock()
        with self._lock:
            late = [f"{operation} is {now - end:.0f} s overdue" for operation, end in self._work.values() if now > end]
        if now - self._beat > STALL_TIMEOUT_S:
            late.insert(0, f"the event loop has been stuck for {now - self._beat:.0f} s")
        late += supervisor().failing()
        return late + [reason for check in self._checks if (reason := check.failing(now))]


class _Check:
    def __init__(self, check: Callable[[], str | None], grace_s: float) -> None:
        self._check = check
        self._grace_s = grace_s
        self._since: float | None = None

    def failing(self, now: float) -> str:
        reason = self._check()
        if not reason:
            self._since = None
            return ""
        if self._since is None:
            self._since = now
        return reason if now - self._since >= self._grace_s else ""


class MonitoredThread:
    """One thread for calls that may hang; `LivenessMonitor` reports a call that exceeds its limit."""

    def __init__(self, name: str, liveness: LivenessMonitor) -> None:
        self._executor = DaemonExecutor(1, name, kept=1)
        self._liveness = liveness

    async def run(self, operation: str, limit_s: float, call: Callable[[], _T]) -> _T:
        """Run `call` after earlier ones; after `limit_s` seconds it is reported as hung. Raises what it raises."""

        def monitored() -> _T:
            with self._liveness.working(operation, limit_s):
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._executor, monitored)

    def shutdown(self) -> None:
        """Drop calls that have not started; a call that hangs is not waited for."""
        self._executor.shutdown()


READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"


class Notifier:
    """The way to the service manager that started this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC."""
        variables = os.environ if environment is None else environment
        path = variables.get("NOTIFY_SOCKET", "")
        # "@" is the leading zero byte of the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec = variables.get("WATCHDOG_USEC", "")
        for_this_process = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(usec) / 1e6 if usec.isdigit() and for_this_process else None
        """Watchdog interval of the service manager in seconds; None without a watchdog."""

    def send(self, *states: str) -> None:
        """Send states such as READY; an unreachable manager is ignored."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(1.0)
            channel.sendto("\n".join(states).encode(), self._address)

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self.send(f"STATUS={text}")
