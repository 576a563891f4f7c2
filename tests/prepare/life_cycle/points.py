"""Points in the work of an agent at which a call is killed, hangs or fails, and what passes them."""

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
from prepare.life_cycle.words import Call, Event
from prepare.simulated_world import Points

Say = Callable[[Event], None]
_T = TypeVar("_T")


class Working(threading.local):
    """What the present thread is at."""

    call: Stoppable | None = None
    uid = ""
    turns = 0
    """How many turns at the ledger, or locks of owner files, it has: both are short."""


_working = Working()


@contextmanager
def _in_turn() -> Iterator[None]:
    _working.turns += 1
    try:
        yield
    finally:
        _working.turns -= 1


class Stoppable:
    """One call, and the point at which it is to be killed, to hang or to fail."""

    def __init__(self, call: Call, say: Say) -> None:
        self.call = call
        self.how: str = call.stop.how
        self.left = call.stop.after
        self.fired = ""
        self.hung_on = ""
        self.hung = threading.Event()
        self.go_on: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._say = say

    def passes(self, point: str) -> None:
        if self.call.stop.point not in point:
            return
        # A disk that hangs in a turn at the ledger stops every claim; what hangs elsewhere must not.
        if not self.how or (self.how == "hang" and _working.turns) or (self.how == "fail" and not _can_fail(point)):
            return
        if self.left:
            self.left -= 1
            return
        how, self.how, self.fired = self.how, "", point
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            self.hung_on = _working.uid
            self.hung.set()
            self._say(Event(self.call.number, "hung", point=point, uid=_working.uid))
            how = self.go_on.get()
        if how == "fail" and _can_fail(point):
            raise RetryableError(f"told to fail {point}")


def _can_fail(point: str) -> bool:
    return point.startswith(("before", "partition"))


def at_work(stoppable: Stoppable, uid: str, work: Callable[[], _T]) -> _T:
    """Do what a call asks for, with its points."""
    _working.call, _working.uid = stoppable, uid
    try:
        return work()
    finally:
        _working.call = None


class ProcessPoints(Points):
    """Tells the call of the present thread what it passes."""

    def __call__(self, name: str) -> None:
        if _working.call is not None:
            _working.call.passes(name)


class Hardware(MutableMapping[str, str]):
    """Partitions that outlive every agent, one file each; those of another driver's claims are shown as such."""

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
            with (self._folder / key).open("x") as made:
                made.write(f"{self._driver} {default}")
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
    """The real ledger, with points around each change."""

    points: Points

    @contextmanager
    def lease(self, deadline: Deadline | None = None) -> Iterator[None]:
        with super().lease(deadline), _in_turn():
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
    """The real owner files, with points between them and the ledger."""

    points: Points

    @contextmanager
    def acquire(self, uid: str, devices: Iterable[Device], deadline: Deadline) -> Iterator[Unlock]:
        with super().acquire(uid, devices, deadline) as unlock, _in_turn():
            self.points("owner files locked")
            yield unlock

    def release(self, uid: str, deadline: Deadline, devices: Collection[Device] | None = None) -> None:
        self.points("owner files go")
        super().release(uid, deadline, devices)
