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
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.file_lock import lock

MAX_WAITERS = 2
"""Who may wait for a name whose holder is slow."""
MAX_SETUP_WAITERS = 32
"""The same for locks of set-ups: requests were counted before, and hooks of containers are few."""
SLOW_AFTER_S = 5.0
"""Seconds after which a holder counts as slow: longer than a set-up usually takes, for shares come in bursts."""
SETUP_TIMEOUT_S = 15.0
"""Seconds that a set-up waits for a lock of its own, inside of a call that is given 40."""
MAX_KEPT_OPEN = 128
"""Lock files that stay open for the next holder: opening one costs as much as the rest of a lock."""
_DETAIL = 120
"""Bytes of what is written about the holder; every one as long, so that nothing of a longer one is left."""


class LockedError(RetryableError):
    """Somebody else has the lock; the message says who, what for and for how long."""


@dataclass(slots=True)
class _Lock:
    holder: str
    since: float
    waiting: deque[threading.Event] = field(default_factory=deque)


class KeyedLocks:
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
        self._kept: dict[str, int] = {}
        """Open files that are not locked, by name; whoever has the name's lock in this process may use its file."""

    def hold(
        self, names: Iterable[str], deadline: Deadline, purpose: str = "another request"
    ) -> AbstractContextManager[None]:
        """Hold all the names; taken in sorted order, so that two callers never wait for each other.

        `purpose` is what others are told that they wait for. LockedError at the deadline, or at once where the holder
        is slow and enough wait for it already.
        """
        return _Held(self, sorted(set(names)), deadline, purpose)

    def acquire(self, name: str, deadline: Deadline, purpose: str) -> int | None:
        """Take one name, as `hold` does; returns the locked file that other processes see, which `release` takes."""
        self._take_turn(name, deadline, purpose)
        if self._folder is None:
            return None
        try:
            return self._lock_file(name, deadline, purpose)
        except BaseException:
            self._end_turn(name)
            raise

    def release(self, name: str, file: int | None) -> None:
        """Let go of a name that `acquire` has given."""
        # The file first: who gets the name within the process next finds its file free.
        if file is not None:
            self._unlock_file(name, file)
        self._end_turn(name)

    def _take_turn(self, name: str, deadline: Deadline, purpose: str) -> None:
        with self._guard:
            lock = self._locks.get(name)
            if lock is None:
                self._locks[name] = _Lock(purpose, self._clock())
                return
            turn = threading.Event()
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

    def _end_turn(self, name: str) -> None:
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
            hint="it is tried again; where it lasts, `dra-agent doctor` and the kernel's log (dmesg) say what hangs",
        )

    def close(self) -> None:
        """Close the files that are kept open, none of which is locked."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    __del__ = close

    def _lock_file(self, name: str, deadline: Deadline, purpose: str) -> int:
        handle = self._kept.pop(name, None)
        if handle is not None and not os.fstat(handle).st_nlink:
            # Removed while it was kept: other processes lock the file that has its name now.
            os.close(handle)
            handle = None
        if handle is None:
            handle = self._opened(name)
        try:
            if not lock(handle, deadline):
                raise LockedError(
                    f"another agent has been in work on it ({_holder(handle)})",
                    where=name,
                    hint="it is tried again; where it lasts, see what that agent waits for",
                )
            with suppress(OSError):  # a full disk: the lock holds all the same, others are just not told by whom
                os.pwrite(handle, f"{self._process}, for {purpose}".encode()[:_DETAIL].ljust(_DETAIL), 0)
        except OSError as error:
            os.close(handle)
            raise RetryableError(f"cannot be locked: {error.strerror}", where=self._path(name)) from error
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _unlock_file(self, name: str, handle: int) -> None:
        if len(self._kept) < MAX_KEPT_OPEN:
            fcntl.flock(handle, fcntl.LOCK_UN)
            self._kept[name] = handle
        else:
            os.close(handle)

    def _opened(self, name: str) -> int:
        path = self._path(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(path, flags, 0o600)
            except FileNotFoundError:
                Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                return os.open(path, flags, 0o600)
        except OSError as error:
            raise RetryableError(
                f"cannot be locked: {error.strerror}", where=path, hint="see to its disk and its owner"
            ) from error

    def _path(self, name: str) -> str:
        return f"{self._folder}/{quote(name, safe='')}.lock"


class _Held:
    """The names of one holder, for a `with` statement; a class, for every request takes two of them."""

    __slots__ = ("_deadline", "_locks", "_names", "_purpose", "_taken")

    def __init__(self, locks: KeyedLocks, names: list[str], deadline: Deadline, purpose: str) -> None:
        self._locks = locks
        self._names = names
        self._deadline = deadline
        self._purpose = purpose
        self._taken: list[tuple[str, int | None]] = []

    def __enter__(self) -> None:
        try:
            for name in self._names:
                self._taken.append((name, self._locks.acquire(name, self._deadline, self._purpose)))
        except BaseException:
            self._release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._taken:
            self._locks.release(*self._taken.pop())


def setup_locks(state_dir: Path | None, kind: str) -> KeyedLocks:
    """Return the locks of one kind of set-up for all agents on a state directory; without one, for this process."""
    folder = None if state_dir is None else state_dir / "locks" / kind
    return KeyedLocks(folder, max_waiters=MAX_SETUP_WAITERS)


def _holder(handle: int) -> str:
    return os.pread(handle, _DETAIL, 0).decode(errors="replace").strip() or "it does not say which"
