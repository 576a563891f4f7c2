"""Named locks with a deadline: of a claim, of its devices, and of resources that several devices share.

A holder that hangs must not block all threads: once it has held a lock for `SLOW_AFTER_S`, no
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
"""Maximum waiters for a name with a slow holder."""
MAX_SETUP_WAITERS = 32
"""The same for locks of set-ups: requests were counted before, and hooks of containers are few."""
SLOW_AFTER_S = 5.0
"""Seconds after which a holder counts as slow: longer than a set-up usually takes, for shares come in bursts."""
SETUP_TIMEOUT_S = 15.0
"""Seconds that a set-up waits for its own lock, within a call that has 40 seconds."""
MAX_CACHED_FILES = 128
"""Lock files that stay open for the next holder: opening one costs as much as the rest of a lock."""
_HOLDER_BYTES = 120
"""Bytes of the record of the holder. All records have this length, so that none leaves a part of a longer one."""


_PUBLIC = "the agent works on it for another claim, which its log names; it is retried"


class LockedError(RetryableError):
    """The lock is held; the message has the holder, its purpose and the duration."""


@dataclass(slots=True)
class _Lock:
    holder: str
    since: float
    waiting: deque[threading.Event] = field(default_factory=deque)


class KeyedLocks:
    """Locks by name, created on demand and removed when unused."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        process: str = "",
        max_waiters: int = MAX_WAITERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is shared with other processes; `process` identifies this one to them, besides its pid."""
        self._folder = folder
        self._process = f"pid {os.getpid()}" + (f", {process}" if process else "")
        self._max_waiters = max_waiters
        self._clock = clock
        self._mutex = threading.Lock()
        self._locks: dict[str, _Lock] = {}
        self._cached_files: dict[str, int] = {}
        """Open files that are not locked, by name; the holder of the name's lock in this process may use its file."""

    def hold(
        self, names: Iterable[str], deadline: Deadline, purpose: str = "another request"
    ) -> AbstractContextManager[None]:
        """Hold all the names; taken in sorted order, so that two callers never wait for each other.

        `purpose` is reported to waiters. Raises LockedError at the deadline, or at once if the holder
        is slow and enough wait for it already.
        """
        return _Hold(self, sorted(set(names)), deadline, purpose)

    @property
    def held(self) -> list[str]:
        """The names that this process holds, in order."""
        with self._mutex:
            return sorted(self._locks)

    def waiters(self, name: str) -> int:
        """Return how many threads of this process wait for a name."""
        with self._mutex:
            lock = self._locks.get(name)
            return 0 if lock is None else len(lock.waiting)

    def acquire(self, name: str, deadline: Deadline, purpose: str) -> int | None:
        """Lock one name, as `hold` does; returns the locked file for other processes, to pass to `release`."""
        self._acquire_name(name, deadline, purpose)
        if self._folder is None:
            return None
        try:
            return self._lock_file(name, deadline, purpose)
        except BaseException:
            self._release_name(name)
            raise

    def release(self, name: str, file: int | None) -> None:
        """Unlock a name that was locked by `acquire`."""
        # The file first: who gets the name within the process next finds its file free.
        if file is not None:
            self._unlock_file(name, file)
        self._release_name(name)

    def _acquire_name(self, name: str, deadline: Deadline, purpose: str) -> None:
        with self._mutex:
            lock = self._locks.get(name)
            if lock is None:
                self._locks[name] = _Lock(purpose, self._clock())
                return
            turn = threading.Event()
            lock.waiting.append(turn)
        while True:
            with self._mutex:
                if turn.is_set():
                    lock.holder, lock.since = purpose, self._clock()
                    return
                slow_in = lock.since + SLOW_AFTER_S - self._clock()
                crowded = slow_in <= 0 and lock.waiting.index(turn) >= self._max_waiters
                remaining_s = deadline.remaining()
                if crowded or not remaining_s:
                    lock.waiting.remove(turn)
                    raise self._refused(name, lock)
            turn.wait(min(remaining_s, slow_in) if slow_in > 0 else remaining_s)

    def _release_name(self, name: str) -> None:
        with self._mutex:
            lock = self._locks[name]
            if lock.waiting:
                # Passed to the first waiter: later ones cannot overtake it.
                lock.since = self._clock()
                lock.waiting.popleft().set()
            else:
                del self._locks[name]

    def _refused(self, name: str, lock: _Lock) -> LockedError:
        return LockedError(
            f"{lock.holder} has been in work on it for {self._clock() - lock.since:.0f} s",
            where=name,
            public=_PUBLIC,
            hint="it is retried; if it persists, `dra-agent doctor` and the kernel log name the call that hangs",
        )

    def close(self) -> None:
        """Close the cached files, none of which is locked."""
        while self._cached_files:
            os.close(self._cached_files.popitem()[1])

    __del__ = close

    def _lock_file(self, name: str, deadline: Deadline, purpose: str) -> int:
        handle = self._cached_files.pop(name, None)
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
                    public=_PUBLIC,
                    hint="it is retried; if it persists, check the log of that agent",
                )
            with suppress(OSError):  # a full disk: the lock is valid, but its holder is not recorded
                os.pwrite(handle, f"{self._process}, for {purpose}".encode()[:_HOLDER_BYTES].ljust(_HOLDER_BYTES), 0)
        except OSError as error:
            os.close(handle)
            raise RetryableError(f"cannot be locked: {error.strerror}", where=self._path(name)) from error
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _unlock_file(self, name: str, handle: int) -> None:
        if len(self._cached_files) < MAX_CACHED_FILES:
            fcntl.flock(handle, fcntl.LOCK_UN)
            self._cached_files[name] = handle
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
                f"cannot be locked: {error.strerror}", where=path, hint="check its disk and its owner"
            ) from error

    def _path(self, name: str) -> str:
        return f"{self._folder}/{quote(name, safe='')}.lock"


class _Hold:
    """The names of one holder, for a `with` statement; a class, for every request takes two of them."""

    __slots__ = ("_acquired", "_deadline", "_locks", "_names", "_purpose")

    def __init__(self, locks: KeyedLocks, names: list[str], deadline: Deadline, purpose: str) -> None:
        self._locks = locks
        self._names = names
        self._deadline = deadline
        self._purpose = purpose
        self._acquired: list[tuple[str, int | None]] = []

    def __enter__(self) -> None:
        try:
            for name in self._names:
                self._acquired.append((name, self._locks.acquire(name, self._deadline, self._purpose)))
        except BaseException:
            self._release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._acquired:
            self._locks.release(*self._acquired.pop())


def setup_locks(state_dir: Path | None, kind: str, *, clock: Callable[[], float] = time.monotonic) -> KeyedLocks:
    """Return the locks of one kind of set-up for all agents on a state directory; without one, for this process."""
    folder = None if state_dir is None else state_dir / "locks" / kind
    return KeyedLocks(folder, max_waiters=MAX_SETUP_WAITERS, clock=clock)


def _holder(handle: int) -> str:
    return os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip() or "unknown process"
