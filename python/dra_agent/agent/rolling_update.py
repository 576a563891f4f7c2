"""The agents that live on one state directory during a rolling update: which is the newest, and which one leads.

The newest does local work that needs nothing but the host: CDI specs, MPS daemons, the saved reclaim state. The leader
writes to the API server: the newest of those whose writes have succeeded, or the newest of all if there are none.

An instance is a file `instances/ORDER-UID` below the state directory, locked with flock(2) for its owner's life, so
that a crash needs no cleanup. Its size is the owner's `LeadershipState`: a size needs no block on a full disk. An empty
file belongs to a version that does not report it, and leads while it runs.

An instance that is stopped or hangs keeps its lock: it loses its rank when its beats end (dra_agent.agent.beats). All
instances judge by the same files, an instance also itself: one that continues after a stop knows that another one may
have taken over, until its next beat.

The size of `instances/.leader` is the order of the last leader. An instance records itself there before it writes as
the leader, so that one that leads again knows that another one led since, and replaces what that one wrote. The record
need not survive a power cut: every instance starts again then, and a new one compares everything.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from dra_agent import atomic_file
from dra_agent.agent.beats import BEAT_INTERVAL_S, Beats
from dra_agent.clock import boottime
from dra_agent.errors import PermanentError, RetryableError, UsageError
from dra_agent.supervisor import supervisor

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
"""Seconds between two checks of the other instances: a process that ends releases its flock(2) without an event."""
EXPIRE_AFTER_S = 600.0
"""Seconds for which an exited instance keeps its rank: a restarted container is as old as its pod."""
_FOLDER = "instances"
_REGISTER = ".register"
_LAST_LEADER = ".leader"
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENTRY = re.compile(r"(\d{12})-(.+)")


Trace = tuple[int, int, int]
"""Order of an instance, size of its file, and the time of its last change in nanoseconds."""


def check_uid(uid: str) -> None:
    """Raise UsageError for an invalid name of an instance."""
    if not _UID.fullmatch(uid):
        raise UsageError(f"{uid!r} cannot name an instance", where="--pod-uid", hint="set the uid of the pod")


class LeadershipState(enum.IntEnum):
    """State of an instance; the value is the size of its file in bytes. The highest leads."""

    STOPPING = 1
    """It no longer writes, and only completes its requests."""
    UNABLE = 2
    """It has not shown yet that it can write to the API server, or is refused there."""
    ABLE = 3


class InstanceRegistry:
    """One of the agents on a state directory, from creation to `close`."""

    def __init__(self, state_dir: Path, uid: str, *, clock: Callable[[], float] = boottime) -> None:
        """Register after all others, or in the place of an earlier agent of the same pod.

        `clock` returns the seconds since the host's boot, and is the same for all instances. UsageError where the uid
        cannot be a name, PermanentError where another agent with the same one lives, RetryableError where the disk
        refuses.
        """
        check_uid(uid)
        self._folder = state_dir / _FOLDER
        self._tasks: list[asyncio.Task[None]] = []
        self._beats = Beats(self._folder, clock)
        self._state = LeadershipState.UNABLE
        self._known: tuple[frozenset[Trace], bool] = frozenset(), False
        """What the last check of `watch` found."""
        self._answers: set[bool] = set()
        """What `is_leader` has returned since the last check of `watch`; also False if another instance led since."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._record = self._folder / _LAST_LEADER
            self._record.touch(mode=0o600)
            self._last_leader = self._record.stat().st_size
            """The last leader at the latest call of `is_leader`, by its order."""
            with self._registering():
                self._order, self._handle = self._claim_place(uid)
        except OSError as error:
            raise RetryableError(
                f"this instance cannot be registered: {error.strerror}",
                where=str(self._folder),
                hint="make it a directory that the agent can write",
            ) from error

    def is_newest(self) -> bool:
        """Return True if no newer agent runs, from files, in microseconds; RetryableError if they are unreadable."""
        return max(self._ranked()) == self._order

    def others(self) -> list[str]:
        """List the uids of the other agents that live, oldest first."""
        return [uid for order, uid, path in self._places() if order != self._order and _is_running(path)]

    def is_leader(self) -> bool:
        """Return True if this agent writes to the API server; reads the files, in microseconds.

        Exactly one of the living instances leads at any moment. RetryableError where the files cannot be read.
        """
        leads = self._leader() == self._order
        if leads:
            self._record_leader()
        self._answers.add(leads)
        return leads

    def has_able_elder(self) -> bool:
        """Return True if a running older agent can write: this one need not lead before it can, too."""
        ranked = self._ranked().items()
        return any(order < self._order and state is LeadershipState.ABLE for order, state in ranked)

    def start(self) -> None:
        """Beat on the running loop until `close`: an instance whose loop hangs loses its rank, too."""
        self._tasks.append(supervisor().loop("instance beats", self._beat_forever))

    def beat(self) -> None:
        """Report that this instance runs."""
        self._beats.write(self._order)

    def report(self, state: LeadershipState) -> None:
        """Publish this agent's state to the other agents.

        With ABLE an older leader stops writing from its next request on; with less an older one that can write leads
        again. RetryableError where the file cannot be changed, or the others cannot be read.
        """
        try:
            os.ftruncate(self._handle, state)
        except OSError as error:
            raise RetryableError(f"cannot be changed: {error.strerror}", where=str(self._folder)) from error
        self._state = state
        self.is_leader()  # the state may change again before the next check

    def watch(self, changed: Callable[[bool], None], interval_s: float = POLL_INTERVAL_S) -> None:
        """Call `changed` on the running loop with the value of `is_leader` whenever it changes.

        Also if it had the other value for a moment: who asked then waits for this call, and what the other agent has
        written is to be replaced.
        """
        self._known = self.traces(), self.is_leader()
        self._answers.clear()
        self._tasks.append(supervisor().loop("instances", partial(self._watch, changed, interval_s)))

    def traces(self) -> frozenset[Trace]:
        """Return what each other instance of the last minutes has left, also if it has ended.

        It has a new element if another one has started or changed its state since an earlier call.
        """
        found = set()
        for order, _, path in self._places():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RetryableError(f"cannot be read: {error.strerror}", where=str(path)) from error
            if order != self._order:
                found.add((order, status.st_size, status.st_mtime_ns))
        return frozenset(found)

    def close(self) -> None:
        """Release the place."""
        for task in self._tasks:
            task.cancel()
        os.close(self._handle)

    async def _beat_forever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_INTERVAL_S)

    async def _watch(self, changed: Callable[[bool], None], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                # In this order: one that starts in between leads, or leaves a trace for the next check.
                traces, now = self.traces(), self.is_leader()
            except RetryableError as error:
                log.warning("it is not known which agent leads", extra={"reason": str(error)})
                continue
            answers, self._answers = self._answers, set()
            known_traces, known = self._known
            self._known = traces, now
            is_new = not traces <= known_traces
            if now != known or (not now) in answers:
                log.info("this agent leads now" if now else "another agent leads now")
                changed(now)
            elif now and is_new:
                changed(now)  # an instance of a version without the record may have led

    def _leader(self) -> int:
        ranked = self._ranked()
        return max(ranked, key=lambda order: (ranked[order], order))

    def _ranked(self) -> dict[int, LeadershipState]:
        """Return the states of the instances that beat, by their orders; of all that live where none beats."""
        living = {order: state for order, _, path in self._places() if (state := _read_state(path)) is not None}
        living[self._order] = self._state
        return {order: state for order, state in living.items() if not self._beats.is_late(order)} or living

    def _record_leader(self) -> None:
        """Record that this instance leads, and note if another one has led since it did."""
        with suppress(OSError):  # cleared, or read-only: the node still needs a leader
            last = self._record.stat().st_size
            if last != self._last_leader:
                self._answers.add(False)
                self._last_leader = last
            if last != self._order:
                os.truncate(self._record, self._order)
                self._last_leader = self._order

    @contextmanager
    def _registering(self) -> Iterator[None]:
        handle = os.open(self._folder / _REGISTER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # for as long as another one lists a directory
            yield
        finally:
            os.close(handle)

    def _claim_place(self, uid: str) -> tuple[int, int]:
        order, last = None, 0
        for place, other, path in self._places():
            last = max(last, place)
            if other == uid:
                if _is_running(path):
                    raise PermanentError(
                        "another agent of this pod lives",
                        where=str(path),
                        hint="stop it, or set another uid for this one",
                    )
                order = place
            elif not _is_running(path) and time.time() - path.stat().st_mtime > EXPIRE_AFTER_S:  # noqa: TID251 - age of a file: modification times are wall time
                path.unlink()
                self._beats.remove(place)
        order = last + 1 if order is None else order
        handle = os.open(self._folder / _name(order, uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.utime(handle)
        # Before the lock: a running instance always has a size, and a restarted one must prove again that it can write.
        os.ftruncate(handle, LeadershipState.UNABLE)
        self._beats.write(order)
        fcntl.flock(handle, fcntl.LOCK_EX)  # another agent's check lasts microseconds
        return order, handle

    def _places(self) -> list[tuple[int, str, Path]]:
        try:
            names = [_ENTRY.fullmatch(name) for name in os.listdir(self._folder)]  # noqa: PTH208 - names only
        except FileNotFoundError:
            return []  # the state directory was cleared: new agents register again
        except OSError as error:
            raise RetryableError(f"cannot be listed: {error.strerror}", where=str(self._folder)) from error
        return sorted((int(match[1]), match[2], self._folder / match[0]) for match in names if match)


def _name(order: int, uid: str) -> str:
    return f"{order:012}-{uid}"


def _is_running(path: Path) -> bool:
    return _read_state(path) is not None


def _read_state(path: Path) -> LeadershipState | None:
    """Return the state of the owner; None if it does not run."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RetryableError(f"cannot be opened: {error.strerror}", where=str(path)) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _state_of(os.fstat(handle).st_size)
    finally:
        os.close(handle)
    return None


def _state_of(size: int) -> LeadershipState:
    return LeadershipState(size) if size in (LeadershipState.STOPPING, LeadershipState.UNABLE) else LeadershipState.ABLE


LOCK_FILE = "agent.lock"


def remove_leftovers(state_dir: Path) -> None:
    """Remove temporary files that agents which were killed left in a state directory and its folders."""
    with suppress(OSError):
        folders = [path for path in state_dir.iterdir() if path.is_dir() and not path.is_symlink()]
        for folder in (state_dir, *folders):
            if removed := atomic_file.remove_leftovers(folder):
                log.info(
                    "temporary files of an agent that was killed are removed",
                    extra={"folder": str(folder), "files": len(removed)},
                )


class StateLock:
    """Holds the lock from creation to `close`."""

    def __init__(self, state_dir: Path, *, shared: bool = False) -> None:
        """Create the directory if missing, and lock it: exclusively, or shared with other agents.

        Raises PermanentError with the agent that holds it, RetryableError if the directory cannot be used.
        """
        path = state_dir / LOCK_FILE
        try:
            _make_directory(state_dir)
            self._handle = _open(path)
        except OSError as error:
            raise RetryableError(
                f"the state directory cannot be used: {error.strerror}",
                where=str(state_dir),
                hint="make it a directory that the agent can write, or choose another with --state-dir",
            ) from error
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._handle, 32).decode(errors="replace").strip()
            os.close(self._handle)
            if not isinstance(error, BlockingIOError):
                raise RetryableError(f"cannot be locked: {error.strerror}", where=str(path)) from error
            raise PermanentError(
                f"another agent{f' (pid {holder})' if holder.isdigit() else ''} runs on this state directory",
                where=str(state_dir),
                hint="stop it: of the agents of one host, one at a time serves a driver"
                + ("; only agents that all have --pod-uid share a state directory" if shared else ""),
            ) from None
        try:
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{os.getpid()}\n".encode())
        except OSError:
            pass  # a full or read-only disk: the lock is still held, but a second agent cannot name this one

    def close(self) -> None:
        """Let the next agent have it."""
        os.close(self._handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
    # Prepared claims can still be read. flock(2) needs no write permission.
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None


def _make_directory(path: Path) -> None:
    """Create it with its parents; a new name is durable once the directory that it is in is synced."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        atomic_file.sync_directory(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
