"""Locks by name, waited for with a deadline: a claim's, its devices', and those of what lies behind several devices.

A holder that hangs must not collect everybody who wants the same name: once it has held a lock for `SLOW_AFTER_S`, no
more than a few wait for it, and further ones are refused at once. A quick burst is served in full.

With a folder, a lock also keeps other processes on the same state directory out: each name has a file there, locked
with flock(2), which ends with the process that has it. The in-process lock always comes first.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError

MAX_WAITERS = 2
"""Who may wait for a name whose holder is slow."""
MAX_SETUP_WAITERS = 32
"""The same for locks of set-ups: requests were counted before, and hooks of containers are few."""
SLOW_AFTER_S = 5.0
"""Seconds after which a holder counts as slow: longer than a set-up usually takes, for shares come in bursts."""
SETUP_TIMEOUT_S = 15.0
"""Seconds that a set-up waits for a lock of its own, inside of a call that is given 40."""
POLL_INTERVALS_S = (0.001, 0.05)
"""First and longest pause between two tries at a lock that another process has."""
_DETAIL = 120
"""Bytes of what is written about the holder; every one as long, so that nothing of a longer one is left."""


class LockedError(RetryableError):
    """Somebody else has the lock; the message says who, what for and for how long."""


@dataclass(slots=True)
class _Lock:
    holder: str | None = None
    since: float = 0.0
    waiting: deque[threading.Event] = field(default_factory=deque)


class NamedLocks:
    """A lock for each name, made when somebody wants it and forgotten when nobody does."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        process: str = "",
        max_waiters: int = MAX_WAITERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is where other processes find the locks; `process` tells them who this is, besides its pid."""
        self._folder = folder
        self._process = f"pid {os.getpid()}" + (f", {process}" if process else "")
        self._max_waiters = max_waiters
        self._clock = clock
        self._guard = threading.Lock()
        self._locks: dict[str, _Lock] = {}

    @contextmanager
    def hold(self, names: Iterable[str], deadline: Deadline, purpose: str = "another request") -> Iterator[None]:
        """Hold all the names; taken in sorted order, so that two callers never wait for each other.

        `purpose` is what others are told that they wait for. LockedError at the deadline, or at once where the holder
        is slow and enough wait for it already.
        """
        with ExitStack() as stack:
            for name in sorted(set(names)):
                self._acquire(name, deadline, purpose)
                stack.callback(self._release, name)
                if self._folder is not None:
                    stack.callback(os.close, self._lock_file(name, deadline, purpose))
            yield

    def _acquire(self, name: str, deadline: Deadline, purpose: str) -> None:
        turn = threading.Event()
        with self._guard:
            lock = self._locks.setdefault(name, _Lock())
            if lock.holder is None:
                lock.holder, lock.since = purpose, self._clock()
                return
            lock.waiting.append(turn)
        while True:
            with self._guard:
                if turn.is_set():
                    lock.holder, lock.since = purpose, self._clock()
                    return
                slow_in = lock.since + SLOW_AFTER_S - self._clock()
                crowded = slow_in <= 0 and lock.waiting.index(turn) >= self._max_waiters
                left = deadline.remaining()
                if crowded or not left:
                    lock.waiting.remove(turn)
                    raise self._refused(name, lock)
            turn.wait(min(left, slow_in) if slow_in > 0 else left)

    def _release(self, name: str) -> None:
        with self._guard:
            lock = self._locks[name]
            if lock.waiting:
                # Handed over: nobody who comes now is faster than who waits.
                lock.since = self._clock()
                lock.waiting.popleft().set()
            else:
                del self._locks[name]

    def _refused(self, name: str, lock: _Lock) -> LockedError:
        return LockedError(
            f"{lock.holder} has been in work on it for {self._clock() - lock.since:.0f} s",
            where=name,
            todo="it is tried again; where it lasts, `dra-agent doctor` and the kernel's log (dmesg) say what hangs",
        )

    def _lock_file(self, name: str, deadline: Deadline, purpose: str) -> int:
        assert self._folder is not None
        path = self._folder / f"{quote(name, safe='')}.lock"
        try:
            handle = self._open(path)
        except OSError as error:
            raise RetryableError(
                f"cannot be locked: {error.strerror}", where=str(path), todo="see to its disk and its owner"
            ) from error
        try:
            pause, longest = POLL_INTERVALS_S
            while not _try_lock(handle):
                left = deadline.remaining()
                if not left:
                    raise LockedError(
                        f"another agent has been in work on it ({_holder(handle)})",
                        where=name,
                        todo="it is tried again; where it lasts, see what that agent waits for",
                    )
                time.sleep(min(pause, left))
                pause = min(2 * pause, longest)
            with suppress(OSError):  # a full disk: the lock holds all the same, others are just not told by whom
                os.pwrite(handle, f"{self._process}, for {purpose}".encode()[:_DETAIL].ljust(_DETAIL), 0)
        except OSError as error:
            os.close(handle)
            raise RetryableError(f"cannot be locked: {error.strerror}", where=str(path)) from error
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)


def setup_locks(state_dir: Path | None, kind: str) -> NamedLocks:
    """Return the locks of one kind of set-up for all agents on a state directory; without one, for this process."""
    folder = None if state_dir is None else state_dir / "locks" / kind
    return NamedLocks(folder, max_waiters=MAX_SETUP_WAITERS)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> str:
    return os.pread(handle, _DETAIL, 0).decode(errors="replace").strip() or "it does not say which"
