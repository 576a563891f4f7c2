"""The lease on a ledger that several agents have open. All threads of a process share one lease.

The first thread acquires the lease, the last one releases it. While another process waits for it, no thread joins
a lease older than a second, so that neither process starves the other. A lease is held while the ledger is read or
written, never while a device is set up or a file for containers is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from dra_agent.deadline import Deadline
from dra_agent.errors import AgentError, RetryableError

log = logging.getLogger(__name__)

ACQUIRE_TIMEOUT_S = 30.0
"""Default timeout of acquiring the lease, below the kubelet's timeout of 45 s."""
JOIN_WINDOW_S = 1.0
"""Seconds after which a lease is no longer joined while another process waits."""

LeaseHistory = Literal["unchanged", "released", "abandoned"]


class ProcessLock(Protocol):
    """Excludes other processes. A protocol, because `ledger`, which implements it, imports this module."""

    def acquire(self, wait: float) -> LeaseHistory:
        """Acquire the lease and read the records of other processes. Raises RetryableError after `wait` seconds."""
        ...

    def release(self) -> None:
        """Release the lease."""
        ...

    def contended(self) -> bool:
        """Return whether another process waits."""
        ...


class LedgerLease:
    """The leases of this process. Thread-safe."""

    def __init__(self, lock: ProcessLock, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = lock
        self._clock = clock
        self._changed = threading.Condition()
        self._state: Literal["outside", "passing", "inside"] = "outside"
        self._holders = 0
        self._join_until = 0.0

    def hold(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Hold the lease for a `with` statement.

        Raises:
            RetryableError: The lease is not available by the deadline; the message names the agent that holds it.
        """
        return _Hold(self, deadline or Deadline.of(ACQUIRE_TIMEOUT_S))

    def _enter(self, deadline: Deadline) -> None:
        with self._changed:
            while self._state != "outside":
                if self._state == "inside" and self._joinable():
                    self._holders += 1
                    return
                if not self._changed.wait(deadline.remaining()):
                    raise RetryableError(
                        "this agent still writes other claims, and another agent waits too",
                        where="the ledger",
                        hint="try again; if it persists, `dra-agent doctor` names the call that hangs",
                    )
            self._state = "passing"
        self._acquire(deadline)

    def _joinable(self) -> bool:
        now = self._clock()
        if now >= self._join_until:
            if self._lock.contended():
                return False
            self._join_until = now + JOIN_WINDOW_S
        return True

    def _acquire(self, deadline: Deadline) -> None:
        try:
            since = self._lock.acquire(deadline.remaining())
        except BaseException:
            self._set_state("outside")
            raise
        if since == "abandoned":
            log.warning("another agent ended while it wrote the ledger; its claims are repaired one by one")
        self._join_until = self._clock() + JOIN_WINDOW_S
        self._holders = 1
        self._set_state("inside")

    def _leave(self) -> None:
        with self._changed:
            self._holders -= 1
            if self._holders:
                return
            self._state = "passing"
        self._release()
        self._set_state("outside")

    def _release(self) -> None:
        try:
            self._lock.release()
        except AgentError as error:  # still released: the next process reads the disk, as after a crash
            log.warning("the lease ended with unwritten records", extra={"reason": str(error)})

    def _set_state(self, state: Literal["outside", "inside"]) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()


class _Hold:
    """One stay inside, for a `with` statement; a class, for every request has some."""

    __slots__ = ("_deadline", "_lease")

    def __init__(self, lease: LedgerLease, deadline: Deadline) -> None:
        self._lease = lease
        self._deadline = deadline

    def __enter__(self) -> None:
        self._lease._enter(self._deadline)  # noqa: SLF001 - another class of this module

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._lease._leave()  # noqa: SLF001 - another class of this module
