"""Points in the work of an agent at which a call is killed, hangs or fails."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dra_agent.deadline import Deadline
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.prepare.ownership import DeviceOwnership, Unlock
from prepare.life_cycle.protocol import Call, Event
from prepare.simulated_node import Points

SendEvent = Callable[[Event], None]
_T = TypeVar("_T")


class CurrentCall(threading.local):
    """The call of the present thread."""

    call: InterruptibleCall | None = None
    uid = ""
    short_sections = 0
    """Nesting depth of ledger leases and owner file locks, both of which are short."""


_current = CurrentCall()


@contextmanager
def _in_short_section() -> Iterator[None]:
    _current.short_sections += 1
    try:
        yield
    finally:
        _current.short_sections -= 1


class InterruptibleCall:
    """A call, and the point at which it is killed, hangs or fails."""

    def __init__(self, call: Call, send: SendEvent) -> None:
        self.call = call
        self.action: str = call.interruption.action
        self.left = call.interruption.after
        self.fired = ""
        self.hung_on = ""
        self.hung = threading.Event()
        self.resume: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._send = send

    def reach(self, point: str) -> None:
        if self.call.interruption.point not in point:
            return
        # A disk that hangs during a lease stops every claim; a hang elsewhere must not.
        if (
            not self.action
            or (self.action == "hang" and _current.short_sections)
            or (self.action == "fail" and not _can_fail(point))
        ):
            return
        if self.left:
            self.left -= 1
            return
        action, self.action, self.fired = self.action, "", point
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            self.hung_on = _current.uid
            self.hung.set()
            self._send(Event(self.call.number, "hung", point=point, uid=_current.uid))
            action = self.resume.get()
        if action == "fail" and _can_fail(point):
            raise RetryableError(f"failure injected {point}")


def _can_fail(point: str) -> bool:
    return point.startswith(("before", "partition"))


def run_with_points(interruptible: InterruptibleCall, uid: str, work: Callable[[], _T]) -> _T:
    """Run the work of a call with its points."""
    _current.call, _current.uid = interruptible, uid
    try:
        return work()
    finally:
        _current.call = None


class ProcessPoints(Points):
    """Reports points to the call of the present thread."""

    def __call__(self, name: str) -> None:
        if _current.call is not None:
            _current.call.reach(name)


class PartitionFiles(MutableMapping[str, str]):
    """Partitions that outlive every agent, one file each; those of another driver are marked with its name."""

    def __init__(self, folder: Path, driver: str) -> None:
        self._folder, self._driver = folder, driver

    def __getitem__(self, key: str) -> str:
        try:
            driver, uid = (self._folder / key).read_text().split()
        except FileNotFoundError:
            raise KeyError(key) from None
        return uid if driver == self._driver else f"{driver} {uid}"

    def setdefault(self, key: str, default: str = "") -> str:
        try:
            with (self._folder / key).open("x") as file:
                file.write(f"{self._driver} {default}")
        except FileExistsError:
            pass
        return self[key]

    def __setitem__(self, key: str, value: str) -> None:
        raise NotImplementedError

    def __delitem__(self, key: str) -> None:
        (self._folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.name for path in self._folder.iterdir()))

    def __len__(self) -> int:
        return len(list(self._folder.iterdir()))


class PointedLedger(JournalLedger):
    """The real ledger with points around each change."""

    points: Points

    @contextmanager
    def lease(self, deadline: Deadline | None = None) -> Iterator[None]:
        with super().lease(deadline), _in_short_section():
            yield

    def start(self, entry: LedgerEntry, *, durable: bool) -> None:
        self.points("before start")
        super().start(entry, durable=durable)
        self.points("after start")

    def complete(self, uid: str, payload: Any) -> None:
        self.points("before complete")
        super().complete(uid, payload)
        self.points("after complete")

    def release(self, uid: str) -> bool:
        self.points("before release")
        released = super().release(uid)
        self.points("after release")
        return released


class PointedOwnership(DeviceOwnership):
    """The real owner files with points between them and the ledger."""

    points: Points

    @contextmanager
    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> Iterator[Unlock]:
        with super().acquire(uid, devices, deadline) as release_lock, _in_short_section():
            self.points("owner files locked")
            yield release_lock

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        self.points("owner files go")
        super().release(uid, deadline, devices)
