"""Turns on a ledger that several agents have open: one turn of this process serves everything it does at the time.

Who comes first takes the turn, who goes last gives it back. While another process waits for its own turn, nobody joins
one that has lasted a second, so that neither process can keep the other waiting for ever. A turn is held while the
ledger is read or written, never while a device is set up or a file for containers is written.
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

WAIT = 30.0
"""Seconds to wait for another agent where no caller says how long: below the 45 s that the kubelet waits."""
SHARED_FOR = 1.0
"""Seconds after which a turn is no longer joined while another process waits."""

LeaseHistory = Literal["nothing", "turns", "abandoned"]


class ProcessLock(Protocol):
    """What keeps processes apart; the native ledger is one."""

    def acquire(self, wait: float) -> LeaseHistory:
        """Wait for this process's turn and read what others did; say what happened. RetryableError after `wait`."""
        ...

    def release(self) -> None:
        """Let another process have its turn."""
        ...

    def contended(self) -> bool:
        """Tell whether another process waits."""
        ...


class LedgerLease:
    """The turns of this process; safe to use from several threads."""

    def __init__(self, lock: ProcessLock, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = lock
        self._clock = clock
        self._changed = threading.Condition()
        self._state: Literal["outside", "passing", "inside"] = "outside"
        self._inside = 0
        self._closes = 0.0

    def hold(self, deadline: Deadline | None = None) -> AbstractContextManager[None]:
        """Be inside a turn. RetryableError names the agent that does not give its turn back by the deadline."""
        return _Turn(self, deadline or Deadline.of(WAIT))

    def _enter(self, deadline: Deadline) -> None:
        with self._changed:
            while self._state != "outside":
                if self._state == "inside" and self._open():
                    self._inside += 1
                    return
                if not self._changed.wait(deadline.remaining()):
                    raise RetryableError(
                        "this agent still writes other claims, and another agent waits too",
                        where="the ledger",
                        hint="try again; if it stays so, `dra-agent doctor` says what hangs",
                    )
            self._state = "passing"
        self._pass(deadline)

    def _open(self) -> bool:
        now = self._clock()
        if now >= self._closes:
            if self._lock.contended():
                return False
            self._closes = now + SHARED_FOR
        return True

    def _pass(self, deadline: Deadline) -> None:
        try:
            since = self._lock.acquire(deadline.remaining())
        except BaseException:
            self._become("outside")
            raise
        if since == "abandoned":
            log.warning("another agent ended while it wrote the ledger; its claims are repaired one by one")
        self._closes = self._clock() + SHARED_FOR
        self._inside = 1
        self._become("inside")

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self._inside:
                return
            self._state = "passing"
        self._give()
        self._become("outside")

    def _give(self) -> None:
        try:
            self._lock.release()
        except AgentError as error:  # given back all the same: the next process reads what is on disk, as after a crash
            log.warning("the turn ended with something unwritten", extra={"reason": str(error)})

    def _become(self, state: Literal["outside", "inside"]) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()


class _Turn:
    """One stay inside, for a `with` statement; a class, for every request has some."""

    __slots__ = ("_deadline", "_turns")

    def __init__(self, turns: LedgerLease, deadline: Deadline) -> None:
        self._turns = turns
        self._deadline = deadline

    def __enter__(self) -> None:
        self._turns._enter(self._deadline)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._turns._leave()
